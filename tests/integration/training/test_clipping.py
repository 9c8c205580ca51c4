"""Every way to clip gradients is the definition: a backward pass for each record, clipped by itself, added up."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from qidpfl_client.training.flat_parameters import FlatParameters
from qidpfl_client.training.per_sample.chunk_size import advised_chunk
from qidpfl_client.training.per_sample.clipping import (
    METHODS,
    Clipper,
    ClippingMethod,
    GradientMethod,
    clipped_update,
    fastest_method,
)
from qidpfl_client.training.per_sample.functional import gradients_by_vmap, gradients_one_by_one
from qidpfl_client.training.per_sample.gradients import squared_lengths
from qidpfl_client.training.per_sample.hooks import _loss_gradient, gradients_by_hooks, gradients_by_place
from qidpfl_shared.core.privacy.rounding import SLACK
from qidpfl_shared.protocol.mechanism_specs import GradientOnce
from qidpfl_shared.workloads.networks import build_network, layout_of
from qidpfl_shared.workloads.records import Records
from support.training.cases import trainer_of, upload
from support.training.networks import CASES, LABELS, RECORDS, Case, ChangesItsMind, Choosy, Overwritten, Viewed

CPU = torch.device("cpu")
BOUND = 0.5
GENERAL: list[tuple[str, GradientMethod]] = [(name, method) for name in CASES for method in METHODS[2:]]
RULED: list[tuple[str, GradientMethod]] = [
    (name, method)
    for name, case in CASES.items()
    if case.ruled
    for method in ((gradients_by_hooks, gradients_by_place) if case.has_channels else (gradients_by_hooks,))
]


class Setting(NamedTuple):
    """A network with parameters and records of a fixed seed."""

    network: nn.Module
    parameters: FlatParameters
    inputs: Tensor
    labels: Tensor


def setting(case: Case, *, seed: int = 0) -> Setting:
    torch.manual_seed(seed)
    network = case.build().eval()
    for tensor in network.parameters():
        nn.init.normal_(tensor, std=0.5)
    parameters = FlatParameters(network, layout_of(network), CPU)
    inputs = torch.randn(RECORDS, *case.record) * torch.logspace(-1, 1, RECORDS).reshape(-1, *[1] * len(case.record))
    return Setting(network, parameters, inputs, torch.randint(0, LABELS, (RECORDS,)))


def naive(case: Setting, *, bound: float) -> npt.NDArray[np.float64]:
    """Written for this test alone, in float64: a loop over records."""
    total = np.zeros(case.parameters.vector.numel())
    for entered, label in zip(case.inputs, case.labels, strict=True):
        case.network.zero_grad()
        functional.cross_entropy(case.network(entered[None]), label[None]).backward()  # type: ignore[no-untyped-call]
        gradients = [tensor.grad for tensor in case.network.parameters()]
        sizes = [tensor.numel() for tensor in case.network.parameters()]
        flat = np.concatenate(
            [np.zeros(n) if g is None else g.double().numpy().ravel() for g, n in zip(gradients, sizes, strict=True)]
        )
        total += flat * min(1.0, bound * (1 - SLACK) / float(np.linalg.norm(flat)))
    return total


def clipper(case: Setting, method: GradientMethod) -> Clipper:
    return Clipper(network=case.network, parameters=case.parameters, method=method, substitute=case.inputs[0])


def chosen_for(case: Setting) -> ClippingMethod:
    """What is chosen with the records and the parameters of this setting."""
    models = [case.parameters.vector.clone()]
    return fastest_method(case.network, case.parameters, case.inputs, case.labels, models=models)


def middle_norm(case: Setting) -> float:
    """A bound that clips some of the records and not the others."""
    norms: Sequence[float] = [
        float(
            np.linalg.norm(
                naive(case._replace(inputs=case.inputs[k : k + 1], labels=case.labels[k : k + 1]), bound=math.inf)
            )
        )
        for k in range(RECORDS)
    ]
    return float(np.median(norms))


def assert_clips_like_a_loop(clipper: Clipper, case: Setting, *, bound: float) -> None:
    expected = naive(case, bound=bound)
    found = clipper.clipped_sum([(case.inputs, case.labels)], bound=bound).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.linalg.norm(expected)))


@pytest.mark.parametrize(("name", "method"), RULED + GENERAL)
def test_a_method_gives_what_a_loop_over_records_gives(name: str, method: GradientMethod) -> None:
    case = setting(CASES[name])
    for bound in (middle_norm(case), 1e-3, 1e6):
        assert_clips_like_a_loop(clipper(case, method), case, bound=bound)


@pytest.mark.parametrize("bias", [True, False])
def test_a_network_of_one_matrix_gets_the_bits_of_the_same_network_in_a_wrapping(bias: bool) -> None:
    bare = setting(Case(lambda: nn.Linear(30, LABELS, bias=bias), (30,)))
    wrapped = setting(Case(lambda: nn.Sequential(nn.Linear(30, LABELS, bias=bias)), (30,)))
    wrapped.parameters.vector.copy_(bare.parameters.vector)
    squares = squared_lengths(bare.inputs)
    found, known, expected = (
        clipper(case, gradients_by_hooks).clipped_sum([chunk], bound=middle_norm(bare))
        for case, chunk in (
            (bare, (bare.inputs, bare.labels)),
            (bare, (bare.inputs, bare.labels, squares)),
            (wrapped, (bare.inputs, bare.labels)),
        )
    )
    assert torch.equal(found, expected) and torch.equal(known, expected)


def test_a_matrix_with_a_hook_of_its_owner_is_computed_with_the_hook() -> None:
    case = setting(Case(lambda: nn.Linear(30, LABELS), (30,)))
    case.network.register_forward_hook(lambda layer, entered, answers: answers * 3)
    assert_clips_like_a_loop(clipper(case, chosen_for(case).method), case, bound=middle_norm(case))


@pytest.mark.parametrize("name", CASES)
def test_the_fastest_method_that_is_right_is_chosen(name: str) -> None:
    case = setting(CASES[name])
    chosen = chosen_for(case).method
    by_rules = gradients_by_place if CASES[name].has_channels else gradients_by_hooks
    assert chosen is (by_rules if CASES[name].ruled else gradients_by_vmap)
    # Also for fewer records than those that it was chosen with.
    few = case._replace(inputs=case.inputs[:2], labels=case.labels[:2])
    assert_clips_like_a_loop(clipper(case, chosen), few, bound=middle_norm(case))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.ruled and name != "time first"])
def test_the_rules_themselves_see_what_they_do_not_cover(name: str) -> None:
    case = setting(CASES[name])
    assert gradients_by_hooks(case.network, case.inputs, case.labels) is None


def test_the_rules_see_that_what_entered_a_layer_is_no_longer_there() -> None:
    case = setting(Case(Overwritten, (6,)))
    assert gradients_by_hooks(case.network, case.inputs, case.labels) is None


def test_a_network_that_takes_activations_apart_by_view_keeps_its_images_as_they_are() -> None:
    case = setting(Case(Viewed, (2, 6, 6)))
    with pytest.raises(RuntimeError, match="view"):
        gradients_by_place(case.network, case.inputs, case.labels)
    chosen = chosen_for(case).method
    assert chosen is gradients_by_hooks
    assert_clips_like_a_loop(clipper(case, chosen), case, bound=middle_norm(case))


def test_what_torch_cannot_transform_is_done_one_by_one() -> None:
    case = setting(Case(Choosy, (6,)))
    chosen = chosen_for(case).method
    assert chosen is gradients_one_by_one
    assert_clips_like_a_loop(clipper(case, chosen), case, bound=middle_norm(case))


def test_a_rule_is_dropped_for_records_that_it_does_not_hold_for() -> None:
    case = setting(Case(ChangesItsMind, (6,)))
    chosen = chosen_for(case._replace(inputs=case.inputs[:3], labels=case.labels[:3]))
    assert chosen.method is gradients_by_hooks
    assert gradients_by_hooks(case.network, case.inputs, case.labels) is None


def mean_with(case: Setting, index: int, value: float | None) -> npt.NDArray[np.float64]:
    """The released mean if all features of one record have this value; None: without the record."""
    features, labels = case.inputs.double().numpy().copy(), case.labels.numpy()
    if value is None:
        features, labels = np.delete(features, index, axis=0), np.delete(labels, index)
    else:
        features[index] = value
    released = upload(
        trainer_of(case.network, Records(features=features, labels=labels)),
        GradientOnce(clip_norm=BOUND),
        case.parameters.vector.clone(),
    )
    return released * len(labels) / RECORDS


@pytest.mark.parametrize("name", ["deep", "lenet", "layer norm", "tied", "words", "few steps", "loose"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, -3e38])
def test_an_impossible_record_moves_the_mean_no_more_than_another_one(name: str, bad: float) -> None:
    case = setting(CASES[name])
    without, moved = (mean_with(case, 2, value) for value in (None, bad))
    assert np.linalg.norm(moved - without) <= BOUND / RECORDS


@pytest.mark.parametrize("bad", [math.inf, 1e39, -3e38])
def test_a_record_without_a_finite_gradient_counts_as_zero(bad: float) -> None:
    case = setting(CASES["deep"])
    without, moved = (mean_with(case, 2, value) for value in (None, bad))
    np.testing.assert_allclose(moved, without, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.999, 1.001, 1e20, math.inf, math.nan])
def test_an_update_is_never_longer_than_its_bound(factor: float) -> None:
    update = torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64) * factor
    clipped = clipped_update(update, bound=1.0)
    assert float(torch.linalg.vector_norm(clipped)) <= 1
    if factor < 0.99:
        assert torch.equal(clipped, update)
    if 1 < factor < math.inf:
        assert torch.allclose(clipped, update / factor * (1 - SLACK), rtol=1e-9)


def test_a_chunk_shrinks_as_records_grow() -> None:
    chunks = []
    for side in (16, 32, 64, 128):
        shape = (1, side, side)
        case = setting(Case(partial(build_network, "lenet", labels=LABELS, record_shape=shape), shape))
        chunks.append(chosen_for(case).advised_chunk)
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > 4 * chunks[-1] > 0
    assert chunks[0] * 16 * 16 * 4 < 64 * 2**20


def test_memory_is_kept_in_bounds_by_any_network() -> None:
    advised = [advised_chunk(activations=size, gradients=size, device=CPU) for size in (0, 1, 10**6, 10**9, 10**12)]
    assert advised[0] == advised[1] >= advised[2] > advised[3] == advised[4] == 1
    assert advised_chunk(activations=10**6, gradients=0, device=torch.device("meta")) > advised[2]


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_the_gradient_of_the_loss_is_that_of_the_cross_entropy(shape: tuple[int, ...]) -> None:
    answers = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(math.prod(shape) // 4).reshape(5, *shape[2:]) % 4
    loss = torch.nn.functional.cross_entropy(answers, labels, reduction="sum")
    (expected,) = torch.autograd.grad(loss, answers)
    torch.testing.assert_close(_loss_gradient(answers, labels), expected)


def test_a_label_that_the_network_does_not_know_is_an_error() -> None:
    for label in (4, -1):
        with pytest.raises((IndexError, RuntimeError)):
            _loss_gradient(torch.zeros(1, 4), torch.tensor([label]))


def test_a_large_chunk_is_a_multiple_of_half_a_block() -> None:
    cpu = torch.device("cpu")
    chunks = [advised_chunk(activations=kept, gradients=0, device=cpu) for kept in (1, 3_000, 40_000, 700_000)]
    assert all(chunk % 32 == 0 for chunk in chunks) and max(chunks) <= 8192
    assert advised_chunk(activations=10**9, gradients=0, device=cpu) == 1
