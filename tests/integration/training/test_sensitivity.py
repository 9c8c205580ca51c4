"""Replacing one record moves what noise is added to by no more than the core says, and by as much where it can.

A ratio is how far two neighbouring data sets are apart, over the sensitivity that the noise is made for.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from qidpfl_client.training.data_loader import epoch_batches
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.privacy.rounding import SLACK
from qidpfl_shared.protocol.mechanism_specs import (
    BoltOn,
    GradientOnce,
    MechanismSpec,
    NoisyEpochs,
    PaperLiteral,
    UpdateClip,
)
from qidpfl_shared.workloads.records import Records
from support.training.cases import (
    BATCH,
    CLIP,
    MECHANISMS,
    RATE,
    random_records,
    records_of,
    replaced,
    trainer_of,
    upload,
)

SIZE = 20
WIDTH = 6
LABELS = 3
# Clipping stays below its bound by the slack for rounding.
ATTAINED = 1 - 1.1 * SLACK


def network(width: int = WIDTH, labels: int = LABELS, *, bias: bool = True) -> nn.Module:
    return nn.Linear(width, labels, bias=bias)


def hidden_network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, LABELS))


def distance(
    mechanism: MechanismSpec, pair: tuple[Records, Records], model: npt.ArrayLike, *, of: nn.Module | None = None
) -> float:
    """How far apart the releases of two neighbouring data sets are, without noise."""
    built = of or network()
    first, second = (upload(trainer_of(built, records), mechanism, model) for records in pair)
    return float(np.linalg.norm(first - second))


def one_step_of(mechanism: MechanismSpec, size: int) -> float:
    """The sensitivity of what is uploaded; of `noisy_epochs`, whose noise is added step by step, that of a step."""
    core = mechanism.build()
    scale = mechanism.learning_rate if isinstance(mechanism, NoisyEpochs) else 1.0
    return scale * core.sensitivity(size=size)


def neighbours(*, index: int, scale: float = 3.0) -> Iterator[tuple[tuple[Records, Records], Vector]]:
    """Random data, one record of which is replaced by random and by extreme ones, and a random model."""
    for seed in range(4):
        rng = np.random.default_rng(100 + seed)
        records = random_records(SIZE, WIDTH, LABELS, seed=seed, scale=scale)
        own, label = records.features[index], int(records.labels[index])
        model = rng.standard_normal((WIDTH + 1) * LABELS)
        yield (records, replaced(records, index, scale * rng.standard_normal(WIDTH), label)), model
        yield (records, replaced(records, index, -own, label)), model
        yield (records, replaced(records, index, 1e4 * own, (label + 1) % LABELS)), model
        yield (records, replaced(records, index, 0 * own, (label + 2) % LABELS)), 0 * model


def last_visited(*, epochs: int, name: str = "round 1") -> int:
    """A record of the last batch of the last epoch: what it moves is moved by one step alone."""
    *_, last = epoch_batches(size=SIZE, batch_size=BATCH, release=name, epoch=epochs - 1)
    return int(last[0])


SINGLE_EPOCH = NoisyEpochs(clip_norm=CLIP, learning_rate=RATE, epochs=1, batch_size=BATCH)


@pytest.mark.parametrize(
    "mechanism",
    [MECHANISMS["gradient_once"], SINGLE_EPOCH, MECHANISMS["update_clip"], MECHANISMS["bolt_on"]],
    ids=lambda spec: spec.name,
)
def test_no_neighbouring_data_set_exceeds_the_sensitivity(mechanism: MechanismSpec) -> None:
    allowed = one_step_of(mechanism, SIZE)
    worst = max(distance(mechanism, pair, model) for pair, model in neighbours(index=last_visited(epochs=1)))
    assert 0 < worst <= allowed


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 40])
def test_bolt_on_stays_within_its_bound_for_every_record_and_batch(epochs: int, batch_size: int) -> None:
    steepest = 2 / BoltOn(feature_norm=3.0, learning_rate=1e-6, batch_size=1).build().smoothness
    mechanism = BoltOn(feature_norm=3.0, learning_rate=steepest, epochs=epochs, batch_size=batch_size)
    allowed = mechanism.build().sensitivity(size=SIZE)
    worst = max(distance(mechanism, pair, model) for index in (0, 7) for pair, model in neighbours(index=index))
    assert 0.05 * allowed < worst <= allowed


def test_gradient_once_attains_its_bound() -> None:
    # At the zero model of two labels, another label turns a record's gradient around.
    records = random_records(SIZE, WIDTH, 2, scale=10)
    pair = records, replaced(records, 3, records.features[3], 1 - int(records.labels[3]))
    moved = distance(MECHANISMS["gradient_once"], pair, np.zeros(2 * WIDTH + 2), of=network(labels=2))
    assert ATTAINED <= moved / (2 * CLIP / SIZE) <= 1


def test_a_step_of_noisy_epochs_attains_its_bound() -> None:
    records = random_records(SIZE, WIDTH, 2, scale=1e3)
    mechanism = NoisyEpochs(clip_norm=CLIP, learning_rate=RATE, epochs=1, batch_size=SIZE)
    pair = records, replaced(records, 3, records.features[3], 1 - int(records.labels[3]))
    moved = distance(mechanism, pair, np.zeros(2 * WIDTH + 2), of=network(labels=2))
    assert ATTAINED <= moved / (RATE * mechanism.build().sensitivity(size=SIZE)) <= 1


def one_against_silence() -> tuple[Records, Records]:
    """Records without features, which move nothing, but for one whose label is exchanged."""
    features = np.zeros((SIZE, WIDTH))
    features[0] = 1e6
    records = records_of(features, np.zeros(SIZE))
    return records, replaced(records, 0, features[0], 1)


@pytest.mark.parametrize("kind", [UpdateClip, PaperLiteral])
def test_one_record_can_reverse_a_clipped_update(kind: type[UpdateClip | PaperLiteral]) -> None:
    mechanism = kind(clip_norm=CLIP, learning_rate=RATE, epochs=1, batch_size=SIZE)
    moved = distance(mechanism, one_against_silence(), np.zeros(2 * WIDTH), of=network(labels=2, bias=False))
    assert ATTAINED <= moved / (2 * CLIP) <= 1


def test_paper_literal_proves_only_what_the_ledger_says() -> None:
    rho, spec = 0.01, MECHANISMS["paper_literal"]
    core = spec.build()
    moved = distance(spec, one_against_silence(), np.zeros(2 * WIDTH), of=network(labels=2, bias=False))
    real = moved**2 / (2 * core.noise_std(rho=rho, size=SIZE) ** 2)
    assert real == pytest.approx(rho * SIZE**2, rel=3 * SLACK)
    assert real == pytest.approx(core.proven_rho(rho=rho, size=SIZE), rel=3 * SLACK)


def test_bolt_on_comes_close_to_its_bound() -> None:
    # A model that is sure of a wrong label for all features, and a record whose features are negated.
    length = 10.0
    own = np.zeros(WIDTH)
    own[0] = length
    records = records_of([own], [0])
    mechanism = BoltOn(feature_norm=length, learning_rate=0.01, epochs=1, batch_size=1)
    model = np.r_[np.zeros(WIDTH * LABELS), 0, 0, 50]
    moved = distance(mechanism, (records, replaced(records, 0, -own, 0)), model)
    assert 0.99 <= moved / mechanism.build().sensitivity(size=1) <= 1


@pytest.mark.parametrize("name", ["gradient_once", "update_clip", "paper_literal"])
def test_the_check_finds_clipping_that_was_left_out(name: str) -> None:
    unclipped = MECHANISMS[name].model_copy(update={"clip_norm": 1e9})
    allowed = MECHANISMS[name].build().sensitivity(size=SIZE)
    assert max(distance(unclipped, pair, model) for pair, model in neighbours(index=0)) > 2 * allowed


def test_the_check_finds_clipping_that_was_left_out_of_a_step() -> None:
    unclipped = SINGLE_EPOCH.model_copy(update={"clip_norm": 1e9})
    pairs = neighbours(index=last_visited(epochs=1))
    assert max(distance(unclipped, pair, model) for pair, model in pairs) > 2 * one_step_of(SINGLE_EPOCH, SIZE)


def test_the_check_finds_features_that_were_not_bounded() -> None:
    mechanism = MECHANISMS["bolt_on"]
    assert isinstance(mechanism, BoltOn)
    unbounded = UpdateClip(clip_norm=1e9, learning_rate=mechanism.learning_rate, epochs=2, batch_size=BATCH)
    allowed = mechanism.build().sensitivity(size=SIZE)
    assert max(distance(unbounded, pair, model) for pair, model in neighbours(index=0)) > 2 * allowed


@pytest.mark.parametrize("seed", range(3))
def test_networks_with_hidden_layers_keep_the_bound_too(seed: int) -> None:
    built, mechanism = hidden_network(), GradientOnce(clip_norm=0.05)
    dimension = sum(tensor.numel() for tensor in built.parameters())
    model = np.random.default_rng(seed).standard_normal(dimension)
    ratios = [
        distance(mechanism, pair, model, of=built) / mechanism.build().sensitivity(size=SIZE)
        for pair, _ in neighbours(index=seed)
    ]
    assert 0.5 < max(ratios) <= 1


@pytest.mark.parametrize("name", ["gradient_once", "noisy_epochs", "update_clip", "paper_literal"])
@pytest.mark.parametrize("scale", [1e20, 3e38])
def test_a_hostile_model_or_record_cannot_break_the_bound(name: str, scale: float) -> None:
    mechanism = MECHANISMS[name]
    bound = mechanism.build().signal_bound(size=SIZE)
    records = random_records(SIZE, WIDTH, LABELS)
    broken = replaced(records, 2, np.full(WIDTH, scale), 0)
    hostile = np.where(np.arange((WIDTH + 1) * LABELS) % 2, scale, -scale)
    for data, model in ((records, hostile), (broken, 0 * hostile), (broken, hostile)):
        released = upload(trainer_of(network(), data), mechanism, model)
        assert np.isfinite(released).all()
        assert np.linalg.norm(released) <= bound
