"""What is counted while the process runs."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..service.settlement_timer import Timing

# Seconds: a small model takes hundredths, a large one on many updates minutes.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """What is counted while the process runs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qidpfl_requests_total", "answered requests", ["method", "status"], registry=self.registry
        )
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

    def observe_settlement(self, timing: Timing) -> None:
        """Count a round that was settled by this process."""
        self.settlement.observe(timing.settlement_s)
        if timing.evaluation_s is not None:
            self.evaluation.observe(timing.evaluation_s)
