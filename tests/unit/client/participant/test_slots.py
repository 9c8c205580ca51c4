"""Release slots: fixed from public quantities, and the only times at which an update leaves."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_client.journal.journal import Journal
from qidpfl_client.owner import Owner, Prices
from qidpfl_client.participant.participant import TaskParticipant
from qidpfl_client.participant.slots import MonotonicClock, next_slot, slot_s
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, NoisyEpochs, UpdateClip
from qidpfl_shared.protocol.presets import PRESETS, preset
from support.peers.hostile_coordinator import CODE, HostileCoordinator
from support.synthetic_clients import TESTBED_OWNER, SyntheticData, SyntheticLearner, enrolment

ONCE = GradientOnce(clip_norm=1.0)
SLOT_S = 0.25
SMALL_BATCHES: dict[str, Any] = {"learning_rate": 0.1, "epochs": 20, "batch_size": 4}
LOCAL: dict[str, Any] = {"learning_rate": 0.1, "epochs": 3, "batch_size": 16}


@given(size=st.integers(1, 10**7), dimension=st.integers(1, 2**28), device=st.sampled_from(["cpu", "cuda", "mps"]))
def test_a_slot_is_a_quarter_of_a_second_times_a_power_of_two(size: int, dimension: int, device: str) -> None:
    for mechanism in (ONCE, NoisyEpochs(clip_norm=1.0, **LOCAL), UpdateClip(clip_norm=1.0, **LOCAL)):
        length_s = slot_s(mechanism=mechanism, size=size, dimension=dimension, device=device)
        assert length_s >= SLOT_S and np.log2(length_s / SLOT_S).is_integer()
        assert length_s <= slot_s(mechanism=mechanism, size=2 * size, dimension=dimension, device=device)


def test_more_epochs_and_noise_in_every_step_make_a_slot_longer() -> None:
    def length_s(mechanism: Any) -> float:
        return slot_s(mechanism=mechanism, size=5000, dimension=50_000, device="cpu")

    few, many = (BoltOn(feature_norm=1.0, learning_rate=0.1, epochs=n, batch_size=64) for n in (1, 20))
    assert length_s(ONCE) <= length_s(few) < length_s(many)
    once, each = (UpdateClip(clip_norm=1.0, **SMALL_BATCHES), NoisyEpochs(clip_norm=1.0, **SMALL_BATCHES))
    assert length_s(once) < length_s(each)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_length_is_that_of_the_formula_in_the_documentation(device: str) -> None:
    text = " ".join((Path(__file__).parents[4] / "docs" / "privacy.md").read_text().split())
    assert "at least 4·(a + 0.002·s + g·L·D·d + 10⁻⁷·n·d) seconds" in text
    assert "a = 0.05 and g = 2.5·10⁻⁹ on a CPU, a = 1 and g = 10⁻⁹ on other devices" in text
    assert slot_s(mechanism=ONCE, size=110, dimension=650, device="cpu") == 0.25
    assert slot_s(mechanism=ONCE, size=5000, dimension=62_006, device="cpu") == 4.0
    start, gradient = {"cpu": (0.05, 2.5e-9), "cuda": (1.0, 1e-9)}[device]
    size, dimension, epochs = 5000, 50_000, 3
    steps = epochs * -(-size // 64)
    noisy = NoisyEpochs(clip_norm=1.0, learning_rate=0.1, epochs=epochs, batch_size=64)
    local = UpdateClip(clip_norm=1.0, learning_rate=0.1, epochs=epochs, batch_size=64)
    for mechanism, turns, count, noised in ((ONCE, 1, 1, 1), (noisy, epochs, steps, steps), (local, epochs, steps, 1)):
        seconds = 4 * (start + 0.002 * count + gradient * turns * size * dimension + 1e-7 * noised * dimension)
        length = slot_s(mechanism=mechanism, size=size, dimension=dimension, device=device)
        assert length / 2 < max(seconds, 0.126) <= length


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_leaves_time_for_a_slot(name: str) -> None:
    spec = preset(name)
    assert spec.workload.partition is not None
    records = {"digits": 1800, "emnist-small": 10_000, "emnist": 100_000, "cifar10": 50_000}.get(
        spec.workload.dataset, 60_000
    )
    size = 2 * records // spec.workload.partition.clients
    length_s = slot_s(mechanism=spec.privacy.mechanism, size=size, dimension=spec.dimension, device="cpu")
    assert length_s < spec.rounds.declare_s + spec.rounds.deliver_s


@given(begun=st.floats(0, 1e6), after=st.floats(0, 1e4), length_s=st.sampled_from([0.25, 1.0, 64.0]))
def test_the_next_slot_is_later_by_at_most_its_length(begun: float, after: float, length_s: float) -> None:
    at = next_slot(begun=begun, now=begun + after, length_s=length_s)
    assert 0 < at - (begun + after) <= length_s + 1e-6


# --- a participant with a clock of its own ----------------------------------------------------------------------------


class FakeClock(MonotonicClock):
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(0.0, seconds)


@dataclass(frozen=True)
class SlowLearner(SyntheticLearner):
    """Trains as long as a test wants."""

    train: Callable[[], None] = lambda: None

    def release(self, **options: Any) -> npt.NDArray[np.float64]:
        self.train()
        return super().release(**options)


@dataclass
class Scene:
    """A participant of a coordinator that notes when it gets which request."""

    folder: Path
    training_s: float = 0.0
    owner: Owner = TESTBED_OWNER
    slots: bool = True
    hostile: HostileCoordinator = field(default_factory=HostileCoordinator)
    clock: FakeClock = field(default_factory=FakeClock)
    said: list[str] = field(default_factory=list)
    at: dict[str, float] = field(default_factory=dict)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.at[f"{request.method} {path.rpartition('/')[2]}"] = self.clock.time
        query = {name: [value] for name, value in request.url.params.items()}
        status, answer = self.hostile.answer(request.method, path, query, request.content)
        body = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        return httpx.Response(status, content=body)

    def _train(self) -> None:
        self.clock.time += self.training_s

    @contextmanager
    def played(self) -> Iterator[Journal]:
        """One round."""
        http = httpx.Client(base_url="http://127.0.0.1", transport=httpx.MockTransport(self._handle))
        records = SyntheticData(SlowLearner(train=self._train))
        with http, Journal(self.folder / "journal.sqlite") as journal:
            joining = enrolment(http, CODE, journal, owner=self.owner, open_data=records, report=self.said.append)
            participant = TaskParticipant(joining.context, joining.join(), slots=self.slots, clock=self.clock)
            participant.step(wait_s=0)
            yield journal

    @property
    def waited_s(self) -> float:
        """From the download of the model to the upload."""
        return self.at["PUT update"] - self.at["GET 0"]


@pytest.mark.parametrize(("training_s", "waited_s"), [(0.0, 0.25), (0.01, 0.25), (0.2, 0.25), (0.26, 0.5), (1.9, 2.0)])
def test_an_update_leaves_at_a_slot_however_long_the_training_took(
    training_s: float, waited_s: float, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, training_s)
    with scene.played() as journal:
        assert scene.waited_s == pytest.approx(waited_s)
        entry = journal.entry(CODE.partition(".")[0], "round/1")
    # The question whether the round is open comes at the slot as well.
    assert scene.at["GET current"] == scene.at["PUT update"]
    assert entry is not None and entry.training_s == pytest.approx(training_s)


def test_without_slots_an_update_leaves_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 0.01, slots=False)
    with scene.played():
        assert scene.waited_s == pytest.approx(0.01)


def test_a_round_that_closes_before_the_first_slot_is_declined_without_training(tmp_path: Path) -> None:
    scene = Scene(tmp_path, hostile=HostileCoordinator(lies={1: {"deliver_in_s": 0.2}}))
    with scene.played() as journal:
        assert [entry.release for entry in journal.entries()] == ["histogram"]
    assert scene.hostile.declared == [{"decline": True, "reason": "too_late"}] and "GET 0" not in scene.at


def test_an_overrun_gives_up_at_the_end_of_the_round_and_not_when_it_is_ready(tmp_path: Path) -> None:
    ends = []
    for training_s in (1.8, 1.95, 7.0):
        scene = Scene(
            tmp_path / str(training_s), training_s, hostile=HostileCoordinator(lies={1: {"deliver_in_s": 1.9}})
        )
        scene.folder.mkdir()
        with scene.played() as journal:
            assert [entry.state for entry in journal.entries()] == [SpendState.SPENT, SpendState.FREED]
        assert scene.hostile.received == []
        # This coordinator says that the round is still open.
        assert scene.hostile.declared[1:] == [{"decline": True, "reason": "too_late"}]
        assert "round 1: closed before the update was ready; nothing was sent" in scene.said
        ends.append(scene.at["PUT budget"] - 1000.0)
    # The first gives up at the deadline, the others, which are still training then, at a slot.
    assert ends == pytest.approx([1.9, 2.0, 7.25])


def test_a_decline_tells_the_coordinator_a_code_and_the_owner_the_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path, owner=replace(TESTBED_OWNER, min_utility=1e6))
    with scene.played():
        assert scene.hostile.declared == [{"decline": True, "reason": "not_worth_it"}]
    assert any("utility" in line for line in scene.said)


def test_the_cost_of_a_round_is_that_of_a_slot_and_not_of_the_measured_training(tmp_path: Path) -> None:
    """Else a decline would tell how long the training before took."""
    answers = []
    for training_s in (0.0, 0.2):
        scene = Scene(
            tmp_path / str(training_s), training_s, owner=replace(TESTBED_OWNER, prices=Prices(per_second=30.0))
        )
        scene.folder.mkdir()
        with scene.played():
            answers.append(scene.hostile.declared)
        scene.hostile.number = 2
    assert answers[0] == answers[1] and "rho" in answers[0][0]
