"""What the kit plays for a client: tasks whose rounds have faults and lies, each in a known place.

Task `rounds` is honest but troubled: answers are lost, the store is busy, rounds close. Each other task lies once; a
client that notices sends nothing computed from its records, and may stop. So every task needs its own start of the
client.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from qidpfl_shared.core.money import from_micro, to_micro
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import encode

# Every answer has this field: a client ignores fields that it does not know.
UNKNOWN_FIELD: dict[str, Any] = {"field_of_a_later_version": {"ignore": True}}
UNKNOWN_REQUIREMENT = "conformance.unknown"
# The bias of one label in the models: the model is certain of this label for every record.
_CERTAIN = 20.0


class Fault(StrEnum):
    """What happens to the first request of its kind: 503, no answer, or 410 (also later)."""

    NONE = "none"
    BUSY = "busy"
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One announcement: a round, or a further attempt of it. `rho` is the best answer to it, `share` its part of S.

    `model` numbers the models of a task: each is certain of another label.
    """

    number: int
    rho: float
    share: float = 0.5
    attempt: int = 1
    model: int = 0
    rho_max: float | None = None
    standing: Standing = Standing.INVITED
    clip_norm_factor: float = 1.0
    budget_fault: Fault = Fault.NONE
    update_fault: Fault = Fault.NONE

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt."""
        return self.number, self.attempt

    def total(self) -> float:
        """The announced sum S of all budgets."""
        return self.rho / abs(self.share)

    def reward_micro(self, *, cost: float) -> int:
        """The reward to which `rho` is the best answer, for φ·ν = `cost`; with a negative share no budget pays."""
        return to_micro(cost * self.total() / (1 - self.share))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A task of the kit, and where it lies."""

    name: str
    tells: str
    steps: tuple[Step, ...]
    troubled: bool = False
    requires: tuple[str, ...] = ()
    digest_lie: bool = False
    model_lie: bool = False

    def spec(self) -> TaskSpec:
        """The spec without its unknown field."""
        horizon = max(step.number for step in self.steps)
        return preset("digits", {"game": {"horizon": horizon}, "bounds": {"privacy_value_min": 0.01}})


def model_bytes(*, spec: TaskSpec, label: int) -> bytes:
    """A model that is certain of one label: softmax regression with all weights 0 and one large bias.

    The gradient of a record of another label is then known up to its features x ≥ 0 and its clipping: (x, 1) for the
    weights of this label, and (−x, −1) for those of its own label.
    """
    labels = spec.workload.labels
    vector = np.zeros(spec.dimension)
    vector[spec.dimension - labels + label] = _CERTAIN
    return encode(vector)


def best_rho(*, step: Step, privacy_value: float, privacy_weight: float) -> float:
    """S − φ·ν·S²/R with the announced numbers; not above the bound of the announcement."""
    cost = privacy_weight * privacy_value
    total, reward = step.total(), from_micro(step.reward_micro(cost=cost))
    rho = total - cost * total**2 / reward
    return rho if step.rho_max is None else min(rho, step.rho_max)


# The budgets fit into the default limits of `qidpfl-client run`: 0.05 in a round, 0.2 in all.
_ROUNDS = (
    Step(number=1, rho=0.03),
    Step(number=2, rho=0.025, share=0.25, update_fault=Fault.BUSY),
    Step(number=3, rho=0.02, share=0.8, update_fault=Fault.LOST),
    Step(number=3, rho=0.02, share=0.8, attempt=2),
    Step(number=4, rho=0.04, rho_max=0.015, budget_fault=Fault.LOST),
    Step(number=5, rho=0.01, budget_fault=Fault.CLOSED),
    Step(number=6, rho=0.01, standing=Standing.SET_ASIDE),
    Step(number=7, rho=0.02, share=-1.0),
    Step(number=8, rho=0.02, model=1),
    Step(number=9, rho=0.015, model=1, update_fault=Fault.CLOSED),
    Step(number=10, rho=0.45, model=1),
)
BOUNDED, PRICED_OUT, NOT_INVITED, GREEDY = 4, 7, 6, 10

SCENARIOS = (
    Scenario(name="rounds", tells="lost answers, a busy store, closed rounds", steps=_ROUNDS, troubled=True),
    Scenario(
        name="clip-norm",
        tells="an announcement with twice the clip norm of the spec",
        steps=(Step(number=1, rho=0.02, clip_norm_factor=2.0),),
    ),
    Scenario(
        name="other-model",
        tells="a further attempt of a round with another model",
        steps=(
            Step(number=1, rho=0.02, update_fault=Fault.CLOSED),
            Step(number=1, rho=0.02, attempt=2, model=1),
        ),
    ),
    Scenario(
        name="model-digest",
        tells="a model that does not have the announced digest",
        steps=(Step(number=1, rho=0.02),),
        model_lie=True,
    ),
    Scenario(
        name="spec-digest",
        tells="a spec that does not have the digest of the enrolment",
        steps=(Step(number=1, rho=0.02),),
        digest_lie=True,
    ),
    Scenario(
        name="requirement",
        tells="a spec that requires something unknown",
        steps=(Step(number=1, rho=0.02),),
        requires=(UNKNOWN_REQUIREMENT,),
    ),
)
