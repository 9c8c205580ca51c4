"""The layouts are those of real torch networks, and such a network survives the wire."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.wire import TensorLayout, Vector32, decode, encode, flatten
from qidpfl_shared.workloads.networks import (
    build_network,
    check_layout,
    check_records_stay_apart,
    layout_of,
    load_parameters,
)


class Case(NamedTuple):
    """A network, the layout that describes it, and the shape of one record."""

    layout: TensorLayout
    network: str
    labels: int
    record: tuple[int, ...]


CASES = {
    "linear of digits": Case(layouts.linear(inputs=64, labels=10), "linear", 10, (64,)),
    "linear of mnist": Case(layouts.linear(inputs=784, labels=10), "linear", 10, (784,)),
    "lenet of emnist": Case(layouts.lenet(channels=1, side=28, labels=62), "lenet", 62, (1, 28, 28)),
    "lenet of cifar": Case(layouts.lenet(channels=3, side=32, labels=10), "lenet", 10, (3, 32, 32)),
    "lenet of an odd side": Case(layouts.lenet(channels=2, side=31, labels=5), "lenet", 5, (2, 31, 31)),
    "lenet of the least side": Case(layouts.lenet(channels=1, side=16, labels=3), "lenet", 3, (1, 16, 16)),
    "mcmahan of cifar": Case(layouts.mcmahan_cifar(labels=10), "mcmahan", 10, (3, 24, 24)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def built(case: Case, *, seed: int) -> nn.Module:
    """A network whose parameters are all random, also those of softmax regression."""
    network = build_network(case.network, labels=case.labels, record_shape=case.record).eval()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=source))
    return network


def flat(network: nn.Module, layout: TensorLayout) -> Vector32:
    return flatten(tensors={name: tensor.numpy() for name, tensor in network.state_dict().items()}, layout=layout)


def outputs(network: nn.Module, record: tuple[int, ...]) -> torch.Tensor:
    records = torch.randn((4, *record), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        answers: torch.Tensor = network(records)
    return answers


def test_a_layout_has_the_names_and_shapes_of_the_network_in_order(case: Case) -> None:
    network = built(case, seed=1)
    assert layout_of(network) == case.layout
    check_layout(network, case.layout)
    assert list(network.state_dict()) == [tensor.name for tensor in case.layout.tensors]


def test_a_network_gives_the_same_outputs_after_the_wire(case: Case) -> None:
    sent, loaded = built(case, seed=1), built(case, seed=2)
    data = encode(flat(sent, case.layout))
    load_parameters(loaded, decode(data, dimension=case.layout.dimension), case.layout)
    assert torch.equal(outputs(loaded, case.record), outputs(sent, case.record))


def test_different_parameters_give_different_outputs(case: Case) -> None:
    one, other = built(case, seed=1), built(case, seed=2)
    assert not torch.equal(outputs(one, case.record), outputs(other, case.record))


def test_loaded_parameters_are_a_copy(case: Case) -> None:
    network = built(case, seed=1)
    vector = flat(network, case.layout)
    load_parameters(network, vector, case.layout)
    vector[:] = 0
    assert all(bool(parameter.any()) for parameter in network.parameters())


def test_the_networks_keep_records_apart(case: Case) -> None:
    check_records_stay_apart(built(case, seed=1), torch.randn((4, *case.record)))


def test_the_flat_vector_is_torchs_own_vector_of_parameters(case: Case) -> None:
    network = built(case, seed=1)
    expected = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    assert np.array_equal(flat(network, case.layout), expected)


def test_the_bytes_are_four_for_every_parameter(case: Case) -> None:
    parameters = sum(tensor.numel() for tensor in built(case, seed=1).parameters())
    assert case.layout.byte_length == 4 * parameters


@pytest.mark.parametrize("name", PRESETS)
def test_the_layout_of_every_preset_is_one_of_these_networks(name: str) -> None:
    assert preset(name).layout in [case.layout for case in CASES.values()]
