"""Prometheus metrics of this process."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.messages import TaskState

from ..domain import ClientState
from ..service.figures import TaskFigures
from ..service.rounds.settlement_timer import Timing

# Seconds: a small model takes hundredths, a large one with many updates takes minutes.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters, gauges and histograms, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qidpfl_requests_total", "answered requests", ["method", "status"], registry=self.registry
        )
        self._by_answer: dict[tuple[str, int], Counter] = {}
        self.in_flight = Gauge("qidpfl_requests_in_flight", "requests being answered", registry=self.registry)
        self.waiting = Gauge("qidpfl_long_polls", "clients waiting for an announcement", registry=self.registry)
        self.settlement = Histogram(
            "qidpfl_settlement_seconds",
            "audit, average, model and closing transaction of rounds settled here",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.evaluation = Histogram(
            "qidpfl_evaluation_seconds",
            "evaluation of the models of rounds settled here",
            buckets=_BUCKETS,
            registry=self.registry,
        )

        self.tasks = TaskGauges(self.registry)

    def count_request(self, method: str, status: int) -> None:
        """Count an answered request. Its counter is kept: to find it by its labels takes longer than to count."""
        counter = self._by_answer.get((method, status))
        if counter is None:
            counter = self._by_answer[method, status] = self.requests.labels(method, status)
        counter.inc()

    def observe_settlement(self, timing: Timing) -> None:
        """Record the times of a round that this process has settled, or evaluated after its settlement."""
        if timing.settlement_s is not None:
            self.settlement.observe(timing.settlement_s)
        if timing.evaluation_s is not None:
            self.evaluation.observe(timing.evaluation_s)


class TaskGauges:
    """Gauges of the newest tasks, set at every scrape. `task` is the name of the task."""

    # So many tasks have gauges: the number of time series stays bounded.
    LIMIT = 100
    _STANDINGS = (*(state.value for state in ClientState), "set_aside")

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"qidpfl_task_{name}", text, ["task", *more], registry=registry)

        self._state = gauge("state", "1 for the state of the task", "state")
        self._paused = gauge("paused", "1 while no new round opens")
        self._round = gauge("round", "number of the latest round")
        self._horizon = gauge("horizon", "number of rounds of the task")
        self._clients = gauge("clients", "clients by standing", "standing")
        self._reward = gauge("reward", "reward of the latest round, in units")
        self._paid = gauge("paid", "paid and held in escrow in settled rounds, in units")
        self._kept = gauge("kept", "rewards of settled rounds that were not paid, in units")
        self._accuracy = gauge("accuracy", "accuracy of the newest evaluated model")
        self._spent = gauge("spent_rho", "declared budgets of all updates of settled rounds together")
        self.known: dict[str, TaskFigures] = {}

    def set(self, figures: Iterable[TaskFigures]) -> None:
        """Show these tasks and no others."""
        self.known = {of_task.task.task_id: of_task for of_task in figures}
        for gauge in vars(self).values():
            if isinstance(gauge, Gauge):
                gauge.clear()
        for of_task in self.known.values():
            name = of_task.task.name
            for state in TaskState:
                self._state.labels(name, state.value).set(state is of_task.task.state)
            for standing in self._STANDINGS:
                self._clients.labels(name, standing).set(of_task.clients.get(standing, 0))
            self._paused.labels(name).set(of_task.task.paused)
            self._round.labels(name).set(of_task.round_number)
            self._horizon.labels(name).set(of_task.task.spec.game.horizon)
            self._reward.labels(name).set(of_task.reward_micro / MICRO)
            self._paid.labels(name).set(of_task.paid_micro / MICRO)
            self._kept.labels(name).set(of_task.kept_micro / MICRO)
            self._spent.labels(name).set(of_task.spent_rho)
            if of_task.accuracy is not None:
                self._accuracy.labels(name).set(of_task.accuracy)
