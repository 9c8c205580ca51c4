"""The scenarios of the demo: presets for ten clients, three of which hold only two labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEN_CLIENTS = {"workload": {"partition": {"clients": 10, "two_class_ordinals": [2, 5, 8]}}}
# Ten processes may start slowly, and a killed one starts again: the task waits for all of them, also in a round.
ALL_TEN = {"expected_clients": 10, "quiet_s": 600.0, "enrolment_window_s": 600.0, "declare_s": 600.0}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A task and the privacy values of its clients."""

    title: str
    preset: str
    overrides: Mapping[str, Any] = field(default_factory=lambda: {"rounds": ALL_TEN})
    # What the preset suggests, as options of the clients: no task can raise the limits of a client.
    lifetime_rho: float
    rho_cap: float
    histogram_rho: float
    privacy_values: tuple[float, ...] = (0.95, 1.01, 0.98, 1.05, 0.96, 1.0, 0.99, 1.04, 1.02, 0.97)

    @property
    def clients(self) -> int:
        return len(self.privacy_values)

    @property
    def limit_options(self) -> list[str]:
        """The options of every client for its limits."""
        return [
            *("--lifetime-rho", str(self.lifetime_rho), "--rho-cap", str(self.rho_cap)),
            *("--histogram-rho", str(self.histogram_rho)),
        ]


SCENARIOS = {
    "digits": Scenario(
        title="Handwritten digits of scikit-learn, softmax regression",
        preset="digits",
        lifetime_rho=3.0,
        rho_cap=0.5,
        histogram_rho=0.1,
    ),
    "mnist": Scenario(
        title="MNIST, softmax regression",
        preset="mnist-bad-clients",
        overrides=TEN_CLIENTS | {"rounds": ALL_TEN},
        lifetime_rho=0.5,
        rho_cap=0.02,
        histogram_rho=0.01,
    ),
}
