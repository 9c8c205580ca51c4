"""What is counted while the process runs."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """What is counted while the process runs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qidpfl_requests_total", "answered requests", ["method", "status"], registry=self.registry
        )
        self.in_flight = Gauge("qidpfl_requests_in_flight", "requests being answered", registry=self.registry)
        self.waiting = Gauge("qidpfl_long_polls", "clients waiting for an announcement", registry=self.registry)
