"""Results of settled rounds. They never change again: what one client's request has read serves all the others."""

from collections import OrderedDict

from qidpfl_shared.protocol.messages import RoundResult, RoundState

# Clients ask for the round that was just settled; a few tasks may settle at the same time.
_KEPT = 16


class SettledRounds:
    """The latest settled rounds that somebody has asked for, with everybody's part."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._results: OrderedDict[tuple[str, int], RoundResult] = OrderedDict()

    def get(self, task_id: str, round_number: int) -> RoundResult | None:
        """The result, if it is settled and known."""
        return self._results.get((task_id, round_number))

    def remember(self, task_id: str, result: RoundResult) -> None:
        """Keep a result, unless it may still change; the oldest makes room."""
        if result.state is RoundState.SETTLED:
            self._results[task_id, result.round_number] = result
            if len(self._results) > self._kept:
                self._results.popitem(last=False)
