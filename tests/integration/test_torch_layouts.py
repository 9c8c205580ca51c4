"""The layouts are those of real torch networks, and such a network survives the wire."""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.wire import TensorLayout, decode, encode, flatten, unflatten


class Case(NamedTuple):
    """A network, the layout that describes it, and the shape of one record."""

    layout: TensorLayout
    build: Callable[[], nn.Module]
    record: tuple[int, ...]


def lenet(*, channels: int, width: int, labels: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 6, 5),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2),
            flat=nn.Flatten(),
            full1=nn.Linear(width, 120),
            tanh3=nn.Tanh(),
            full2=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            full3=nn.Linear(84, labels),
        )
    )


def mcmahan_cifar() -> nn.Module:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 64, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, stride=2, padding=1),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(3, stride=2, padding=1),
            flat=nn.Flatten(),
            full1=nn.Linear(64 * 6 * 6, 384),
            relu3=nn.ReLU(),
            full2=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            full3=nn.Linear(192, 10),
        )
    )


CASES = {
    "linear of digits": Case(layouts.linear(inputs=64, labels=10), lambda: nn.Linear(64, 10), (64,)),
    "linear of mnist": Case(layouts.linear(inputs=784, labels=10), lambda: nn.Linear(784, 10), (784,)),
    "lenet of emnist": Case(
        layouts.lenet(channels=1, side=28, labels=62), lambda: lenet(channels=1, width=256, labels=62), (1, 28, 28)
    ),
    "lenet of cifar": Case(
        layouts.lenet(channels=3, side=32, labels=10), lambda: lenet(channels=3, width=400, labels=10), (3, 32, 32)
    ),
    "lenet of an odd side": Case(
        layouts.lenet(channels=2, side=31, labels=5), lambda: lenet(channels=2, width=256, labels=5), (2, 31, 31)
    ),
    "mcmahan of cifar": Case(layouts.mcmahan_cifar(labels=10), mcmahan_cifar, (3, 24, 24)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def built(case: Case, *, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return case.build().eval()


def received(network: nn.Module, layout: TensorLayout) -> dict[str, torch.Tensor]:
    """The network's tensors after they went over the wire."""
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    data = encode(flatten(tensors=tensors, layout=layout))
    vector = decode(data, dimension=layout.dimension)
    return {name: torch.tensor(tensor) for name, tensor in unflatten(vector=vector, layout=layout).items()}


def outputs(network: nn.Module, record: tuple[int, ...]) -> torch.Tensor:
    records = torch.randn((4, *record), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        answers: torch.Tensor = network(records)
    return answers


def test_a_layout_has_the_names_and_shapes_of_the_network_in_order(case: Case) -> None:
    state = built(case, seed=1).state_dict()
    described = [(tensor.name, tensor.shape) for tensor in case.layout.tensors]
    assert [(name, tuple(tensor.shape)) for name, tensor in state.items()] == described


def test_a_network_gives_the_same_outputs_after_the_wire(case: Case) -> None:
    sent, loaded = built(case, seed=1), built(case, seed=2)
    loaded.load_state_dict(received(sent, case.layout))
    assert torch.equal(outputs(loaded, case.record), outputs(sent, case.record))


def test_two_fresh_networks_give_different_outputs(case: Case) -> None:
    one, other = built(case, seed=1), built(case, seed=2)
    assert not torch.equal(outputs(one, case.record), outputs(other, case.record))


def test_the_flat_vector_is_torchs_own_vector_of_parameters(case: Case) -> None:
    network = built(case, seed=1)
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    expected = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    assert np.array_equal(flatten(tensors=tensors, layout=case.layout), expected)


def test_the_bytes_are_four_for_every_parameter(case: Case) -> None:
    parameters = sum(tensor.numel() for tensor in built(case, seed=1).parameters())
    assert case.layout.byte_length == 4 * parameters


@pytest.mark.parametrize("name", PRESETS)
def test_the_layout_of_every_preset_is_one_of_these_networks(name: str) -> None:
    assert preset(name).layout in [case.layout for case in CASES.values()]
