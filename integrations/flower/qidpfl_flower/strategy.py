"""`PaidStrategy`: the planning, selection and settlement of QI-DPFL as a strategy of Flower.

Round 1 begins with a question to all nodes for their profiles. Each round sends its offer with the model to the invited
nodes, and settles their answers. The nodes run `paid_app`.
"""

import time
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING, Logger, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from pydantic import ValidationError

from qidpfl_shared.core.aggregation import ServerState
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import unflatten

from .flower_task import check_supported
from .node_messages import TERMS, UPDATE, NodeAnswer
from .paid_rounds import PaidRound, PaidTask, totals_line
from .parameters import flat_parameters

# Flower's own logger: its handlers show these lines between its own.
_log: Logger = getLogger("flwr")
_NODES_POLL_S = 1.0


class PaidStrategy(Strategy):
    """Pays the nodes of a Flower run for their privacy budgets, by the rules of a task.

    Args:
        task: the spec; `flower_task` makes one for a model.
        profile_timeout_s: how long the strategy waits for the expected nodes, and then for their profiles.
        answer_timeout_s: how long the nodes have for a round, as their offers say. Give `start` the same timeout.

    After the run, `task` has the nodes with their payments and the settled rounds.
    """

    def __init__(self, task: TaskSpec, *, profile_timeout_s: float = 600.0, answer_timeout_s: float = 3600.0) -> None:
        check_supported(task)
        self.spec = task
        self.task: PaidTask | None = None
        self.profile_timeout_s = profile_timeout_s
        self.answer_timeout_s = answer_timeout_s

    @property
    def rounds(self) -> list[PaidRound]:
        """The settled rounds so far."""
        return [] if self.task is None else self.task.rounds

    def summary(self) -> None:
        """Log the task."""
        privacy = self.spec.privacy
        _log.log(INFO, "\t├──> %s rounds, reward policy %s", self.spec.game.horizon, self.spec.game.policy.value)
        _log.log(INFO, "\t└──> mechanism %s, noise audit %s", privacy.mechanism.name, privacy.audit.value)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """The offers of a round with the model, to the invited nodes."""
        if self.task is None:
            self.task = self._selected(arrays, grid)
        offers = self.task.open_round(server_round, answer_s=self.answer_timeout_s)
        if self.task.ended is not None:
            _log.log(WARNING, "no further round: %s", self.task.ended)
        model = self._record(self.task)
        settings = ConfigRecord({**dict(config), "server-round": server_round})
        return [
            Message(
                content=RecordDict(
                    {"arrays": model, "config": settings, TERMS: ConfigRecord({"offer": offer.model_dump_json()})}
                ),
                dst_node_id=node_id,
                message_type="train",
            )
            for node_id, offer in offers.items()
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Settle the round; without a changed model the first value is None."""
        assert self.task is not None
        answers: dict[int, NodeAnswer] = {}
        for reply in replies:
            node_id = int(reply.metadata.src_node_id)
            # The first answer of a node counts, as with QI-DPFL.
            if reply.has_error():
                _log.log(WARNING, "node %s did not answer: %s", node_id, reply.error.reason)
            elif node_id not in answers:
                answers[node_id] = _answer_of(reply.content)
        if not self.task.has_open_round:
            return None, None
        settled = self.task.settle(answers)
        for node_id, node in settled.nodes.items():
            if node.refusal is not None:
                _log.log(INFO, "node %s in round %s: %s", node_id, server_round, node.refusal)
        metrics = MetricRecord(_figures(settled))
        return (None if settled.void else self._record(self.task)), metrics

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """Nothing: a metric on the records of a node would be an unprotected release. Use `evaluate_fn`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Nothing."""
        return None

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rounds, as every strategy of Flower does, and log what they cost."""
        result = super().start(*args, **kwargs)
        _log.log(INFO, "%s", totals_line(self.rounds))
        return result

    def _selected(self, arrays: Any, grid: Any) -> PaidTask:
        """The task after the selection among the nodes that are connected now."""
        named = {name: array.numpy() for name, array in arrays.items()}
        parameters = flat_parameters(named, self.spec.layout).astype(np.float32)
        task = PaidTask(self.spec, ServerState.start(parameters))
        terms = ConfigRecord({"spec": self.spec.model_dump_json()})
        questions = [
            Message(content=RecordDict({TERMS: terms}), dst_node_id=node_id, message_type="query")
            for node_id in self._connected(grid)
        ]
        replies = grid.send_and_receive(messages=questions, timeout=self.profile_timeout_s)
        profiles: dict[int, Profile] = {}
        for reply in replies:
            node_id = int(reply.metadata.src_node_id)
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                if "profile" not in reply.content[TERMS]:
                    raise ValueError("it declines")
                profiles[node_id] = Profile.model_validate_json(str(reply.content[TERMS]["profile"]))
            except (KeyError, ValueError, ValidationError) as error:
                _log.log(WARNING, "node %s sent no profile: %s", node_id, error)
        task.select(profiles)
        chosen = sum(node.selected for node in task.nodes.values())
        _log.log(INFO, "%s of %s nodes are selected", chosen, len(questions))
        return task

    def _connected(self, grid: Any) -> list[int]:
        """The nodes, once as many are there as the task expects; those that are there when the time is over."""
        expected = self.spec.rounds.expected_clients or self.spec.rounds.min_clients
        ends = time.monotonic() + self.profile_timeout_s
        while len(found := list(grid.get_node_ids())) < expected and time.monotonic() < ends:
            _log.log(INFO, "waiting for nodes: %s of %s are connected", len(found), expected)
            time.sleep(_NODES_POLL_S)
        return found

    def _record(self, task: PaidTask) -> Any:
        tensors = unflatten(vector=task.state.parameters, layout=self.spec.layout)
        return ArrayRecord({name: Array(np.ascontiguousarray(tensor)) for name, tensor in tensors.items()})


def _answer_of(content: Any) -> NodeAnswer:
    """The answer in a reply. One that is malformed counts as absent."""
    try:
        terms = content[TERMS]
        if "declined" in terms:
            return NodeAnswer(declined=str(terms["declined"])[:100])
        update = content[UPDATE][UPDATE].numpy()
        rho = float(terms["rho"])
    except Exception as error:
        return NodeAnswer(declined=f"malformed answer: {type(error).__name__}")
    if update.dtype != np.float32:
        return NodeAnswer(declined=f"malformed answer: {update.dtype}")
    return NodeAnswer(rho=rho, update=update)


def _figures(settled: PaidRound) -> Mapping[str, float | int]:
    """The totals of a round, as metrics of Flower."""
    return {
        "reward": from_micro(settled.reward_micro),
        "paid": from_micro(settled.paid_micro),
        "kept": from_micro(settled.kept_micro),
        "updates": settled.accepted,
        "rho": float(sum(node.rho for node in settled.nodes.values())),
    }
