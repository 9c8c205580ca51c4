"""Release slots: the times at which an update may leave, fixed from public quantities alone.

The time of training depends on the records. If an update left as soon as it is ready, the coordinator could measure
that time. So an update leaves at a multiple of a slot after the start of training. The length of a slot depends on the
number of records, the task and the type of device only: all of them are public.
"""

import math
import time
from dataclasses import dataclass

from qidpfl_shared.protocol.mechanism_specs import GradientOnce, MechanismSpec, NoisyEpochs

_SHORTEST_S = 0.25
# How many times the time of a slow machine a slot is long: then nearly every training ends within its first slot.
_MARGIN = 4.0


@dataclass(frozen=True)
class _Speed:
    """The seconds of a slow machine: to start, for one step, for a parameter of a record, for a noised parameter."""

    start_s: float
    step_s: float
    gradient_s: float
    noise_s: float


# The times of two slow cores (docs/benchmarks.md), rounded up. An accelerator starts slowly; the CPU draws its noise.
_CPU = _Speed(start_s=0.05, step_s=2e-3, gradient_s=2.5e-9, noise_s=1e-7)
_ACCELERATOR = _Speed(start_s=1.0, step_s=2e-3, gradient_s=1e-9, noise_s=1e-7)


def slot_s(*, mechanism: MechanismSpec, size: int, dimension: int, device: str) -> float:
    """The length of a slot in seconds: 0.25 times a power of two.

    Args:
        mechanism: what the client computes in a round.
        size: the number of its records.
        dimension: the number of the model's parameters.
        device: the type of its device, such as `cpu` or `cuda`.

    >>> slot_s(mechanism=GradientOnce(clip_norm=1.0), size=110, dimension=650, device="cpu")
    0.25
    >>> slot_s(mechanism=GradientOnce(clip_norm=1.0), size=5000, dimension=62_006, device="cpu")
    4.0
    """
    speed = _CPU if device == "cpu" else _ACCELERATOR
    epochs = 1 if isinstance(mechanism, GradientOnce) else mechanism.epochs
    steps = 1 if isinstance(mechanism, GradientOnce) else epochs * math.ceil(size / mechanism.batch_size)
    noised = steps if isinstance(mechanism, NoisyEpochs) else 1
    slow_s = (
        speed.start_s
        + steps * speed.step_s
        + epochs * size * dimension * speed.gradient_s
        + noised * dimension * speed.noise_s
    )
    return _SHORTEST_S * 2.0 ** max(0, math.ceil(math.log2(_MARGIN * slow_s / _SHORTEST_S)))


def next_slot(*, begun: float, now: float, length_s: float) -> float:
    """The first moment after `now` that is a whole number of slots after `begun`.

    >>> next_slot(begun=10.0, now=10.1, length_s=0.25), next_slot(begun=10.0, now=10.25, length_s=0.25)
    (10.25, 10.5)
    """
    return begun + length_s * (math.floor((now - begun) / length_s) + 1)


class MonotonicClock:
    """A clock that never goes back, and waits. Tests replace it."""

    def now(self) -> float:
        """The time in seconds, from an unknown start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait this long, or not at all if it is negative."""
        time.sleep(max(0.0, seconds))
