"""Clients that break a rule on purpose. The fault tests must notice them."""

from qidpfl_client.journal.journal import Entry, Journal
from qidpfl_client.participant import runner
from qidpfl_client.participant.participant import TaskParticipant
from qidpfl_client.participant.session import Enrolment
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import RoundOffer


def noise_again_instead_of_sending_again() -> None:
    """Make a new update although one may have been sent already. The journal must refuse it."""
    answer = TaskParticipant._answer

    def anew(self: TaskParticipant, offer: RoundOffer) -> None:
        entry = self._journal.entry(self._api.task_id, f"round/{offer.round_number}")
        if entry is not None and entry.state is SpendState.SPENT and not entry.acknowledged:
            self._deliver(offer, entry)
        else:
            answer(self, offer)

    TaskParticipant._answer = anew  # type: ignore[method-assign]


def noise_again_and_overwrite_the_journal() -> None:
    """Make a new update, and write it over the one that may have been sent."""
    noise_again_instead_of_sending_again()

    def overwrite(
        self: Journal, task_id: str, release: str, *, digest: str, payload: bytes, training_s: float | None = None
    ) -> None:
        changes = "state = 'spent', digest = ?, payload = ?"
        self._update(changes, [digest, payload], task_id=task_id, release=release)

    Journal.spend = overwrite  # type: ignore[method-assign]


def write_down_after_sending() -> None:
    """Send first, and write the journal after the answer."""
    unwritten: dict[str, tuple[str, bytes, float | None]] = {}
    spend, payload, entry, acknowledge = Journal.spend, Journal.payload, Journal.entry, Journal.acknowledge

    def later(
        self: Journal, task_id: str, release: str, *, digest: str, payload: bytes, training_s: float | None = None
    ) -> None:
        unwritten[release] = digest, payload, training_s

    def remembered(self: Journal, task_id: str, release: str) -> bytes | None:
        return unwritten[release][1] if release in unwritten else payload(self, task_id, release)

    def as_if_written(self: Journal, task_id: str, release: str) -> Entry | None:
        found = entry(self, task_id, release)
        if found is not None and release in unwritten:
            return Entry(**vars(found) | {"state": SpendState.SPENT, "digest": unwritten[release][0]})
        return found

    def at_last(self: Journal, task_id: str, release: str) -> None:
        digest, data, training_s = unwritten.pop(release)
        spend(self, task_id, release, digest=digest, payload=data, training_s=training_s)
        acknowledge(self, task_id, release)

    Journal.spend, Journal.payload = later, remembered  # type: ignore[method-assign]
    Journal.entry, Journal.acknowledge = as_if_written, at_last  # type: ignore[method-assign]


def read_no_ledger_of_the_coordinator() -> None:
    """Trust an older copy of the journal."""
    Enrolment._reconcile = lambda *_: None  # type: ignore[method-assign]


def come_back_soon() -> None:
    """No fault: after an outage the client tries again within a second, so that a test of many outages is short."""
    runner._LONGEST_PAUSE_S = 1.0
