"""Records without torch: a learner whose updates are only noise of the declared size, and an enrolment with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from qidpfl_client.api import Retries, TaskApi, split_code
from qidpfl_client.journal.journal import Journal
from qidpfl_client.noise import NoiseSource, SystemNoise
from qidpfl_client.owner import Owner
from qidpfl_client.participant.session import ClientContext, Enrolment
from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32

# What the task digits suggests: epsilon 13.8, far above the client's own defaults. The records are made up.
TESTBED_OWNER = Owner(rho_cap=0.5, lifetime_rho=3.0, histogram_rho=0.1)
# The same as options of the commands.
TESTBED_LIMITS = ("--rho-cap", "0.5", "--lifetime-rho", "3", "--histogram-rho", "0.1")
# A lost connection is reported at once; a slow answer gets 30 seconds, so that no request is repeated.
FAST_RETRIES = Retries(attempts=2, timeout_s=30.0, wait_initial_s=0.01, wait_max_s=0.05, jitter_s=0.01)


@dataclass(frozen=True)
class SyntheticLearner:
    """A number of records of each label. Training learns nothing, so a release is only noise."""

    labels: tuple[int, ...] = (11,) * 10
    fingerprint: str = "some records"
    device_type: str = "cpu"
    claimed: bool = False

    @property
    def size(self) -> int:
        return sum(self.labels)

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        return np.array(self.labels)

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        if rho is None:
            return np.full(model.size, 1e-3)
        std = privacy.mechanism.build().noise_std(rho=rho, size=self.size)
        vector: npt.NDArray[np.float64] = std * noise.standard_normal(model.size, release=name)
        return vector


@dataclass(frozen=True)
class SyntheticData:
    """Opens the same records for every task and ordinal."""

    records: SyntheticLearner = SyntheticLearner()

    def __call__(self, spec: TaskSpec) -> "SyntheticData":
        return self

    @property
    def device_type(self) -> str:
        return self.records.device_type

    @property
    def claimed(self) -> bool:
        return self.records.claimed

    def learner(self, ordinal: int) -> SyntheticLearner:
        return self.records


def enrolment(
    http: httpx.Client, code: str, journal: Journal, *, report: Callable[[str], None] = lambda _: None, **options: Any
) -> Enrolment:
    """An enrolment with synthetic records; `options` replace fields of it or of its context."""
    task_id, _ = split_code(code)
    context: dict[str, Any] = {
        "api": TaskApi(http, task_id=task_id, retries=FAST_RETRIES),
        "journal": journal,
        "owner": TESTBED_OWNER,
        "noise": SystemNoise(),
        "report": report,
    }
    context |= {name: options.pop(name) for name in [*options] if name in ClientContext.__dataclass_fields__}
    # Tests that start a coordinator again find it at another port.
    fields: dict[str, Any] = {"codes": (code,), "open_data": SyntheticData(), "moved": True}
    return Enrolment(context=ClientContext(**context), **fields | options)
