"""Prometheus metrics of this process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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

    def count_request(self, method: str, status: int) -> None:
        """Count an answered request. Its counter is kept: to find it by its labels takes longer than to count."""
        counter = self._by_answer.get((method, status))
        if counter is None:
            counter = self._by_answer[method, status] = self.requests.labels(method, status)
        counter.inc()

    def observe_settlement(self, timing: Timing) -> None:
        """Record the times of a round that this process settled."""
        self.settlement.observe(timing.settlement_s)
        if timing.evaluation_s is not None:
            self.evaluation.observe(timing.evaluation_s)
