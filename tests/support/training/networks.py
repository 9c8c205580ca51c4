"""Networks with every kind of layer, and with everything that makes per-record gradients difficult."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qidpfl_shared.workloads.networks import build_network

RECORDS = 7
LABELS = 5


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.outer(torch.tanh(self.inner(torch.tanh(self.inner(inputs)))))
        return answers


class Tied(nn.Module):
    """Two layers with one and the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(LABELS, LABELS)
        self.second = nn.Linear(LABELS, LABELS)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.second(torch.tanh(self.first(inputs)))
        return answers


class UsedBehindTheLayer(nn.Module):
    """A weight that is used by its layer, and once more without it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(LABELS, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = torch.tanh(self.layer(inputs)) @ self.layer.weight
        return answers


class Unused(nn.Module):
    """A layer that is never called, in front of one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(3, 3)
        self.layer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(inputs)
        return answers


class Loose(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))
        self.layer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(inputs * self.scale)
        return answers


class TimeFirst(nn.Module):
    """A layer that sees the records in its second dimension; there are as many records as steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.outer(torch.tanh(self.inner(inputs.transpose(0, 1))).sum(0))
        return answers


class FoldedTime(nn.Module):
    """A layer that sees records and steps in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(12, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.outer(torch.tanh(self.inner(inputs.reshape(-1, 4))).reshape(len(inputs), -1))
        return answers


class Words(nn.Module):
    """Words looked up in a table, some of them more than once; number 0 stands for no word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 6, padding_idx=0)
        self.layer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(self.table(inputs.abs().long() % 4).mean(1))
        return answers


class Choosy(nn.Module):
    """Which layer is called depends on the record, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Linear(6, LABELS)
        self.high = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.low(row[None]) if row.sum() < 0 else self.high(row[None]) for row in inputs])


class ChangesItsMind(nn.Module):
    """Behaves differently with many records, so that a rule that is right for few is wrong for many."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.outer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(inputs))
        answers: Tensor = self.outer(torch.tanh(self.layer(hidden)) if len(inputs) > 3 else hidden)
        return answers


class Overwritten(nn.Module):
    """What entered a layer is overwritten afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        entered = inputs.clone()
        answers: Tensor = self.layer(entered)
        entered.zero_()
        return answers


class Viewed(nn.Module):
    """Takes its activations apart as they lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(2, 3, 3), nn.Linear(48, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.convolution(inputs).tanh()
        return self.last(found.view(len(inputs), -1))  # type: ignore[no-any-return]


class Case(NamedTuple):
    """A network, the shape of one record, and whether the fast rules cover it."""

    build: Callable[[], nn.Module]
    record: tuple[int, ...]
    ruled: bool = True

    @property
    def has_channels(self) -> bool:
        """Whether a record has the form of an image of several channels."""
        return len(self.record) == 3 and self.record[0] > 1


def chain(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def image(*layers: nn.Module, width: int) -> Callable[[], nn.Module]:
    return chain(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(width, LABELS))


CASES = {
    "linear": Case(chain(nn.Linear(6, LABELS)), (6,)),
    "linear, no bias": Case(chain(nn.Linear(6, LABELS, bias=False)), (6,)),
    "deep": Case(chain(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.GELU(), nn.Linear(4, LABELS)), (6,)),
    "changed in place": Case(chain(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, LABELS)), (6,)),
    "dropout": Case(chain(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, LABELS)), (6,)),
    "few steps": Case(chain(nn.Linear(30, 40), nn.Tanh(), nn.Flatten(), nn.Linear(80, LABELS)), (2, 30)),
    "many steps": Case(chain(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, LABELS)), (16, 3)),
    "grid of steps": Case(chain(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(24, LABELS)), (4, 3, 3)),
    "convolution": Case(image(nn.Conv2d(2, 3, 3), width=3 * 36), (2, 8, 8)),
    "strided": Case(image(nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 0)), width=3 * 12), (2, 8, 8)),
    "dilated": Case(image(nn.Conv2d(2, 3, 3, dilation=(2, 1), bias=False), width=3 * 24), (2, 8, 8)),
    "grouped": Case(image(nn.Conv2d(4, 6, 3, groups=2), width=6 * 36), (4, 8, 8)),
    "depthwise": Case(image(nn.Conv2d(4, 4, 3, groups=4), width=4 * 36), (4, 8, 8)),
    "padded to the same": Case(image(nn.Conv2d(2, 3, (3, 4), padding="same", dilation=2), width=192), (2, 8, 8)),
    "padded by reflection": Case(image(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), width=192), (2, 8, 8)),
    "wide convolution": Case(image(nn.Conv2d(20, 30, 3), width=30 * 4), (20, 4, 4)),
    "signal": Case(image(nn.Conv1d(2, 3, 3, stride=2, padding=1), width=3 * 6), (2, 11)),
    "grouped signal": Case(image(nn.Conv1d(4, 4, 3, groups=2, dilation=2), width=4 * 7), (4, 11)),
    "pooled": Case(image(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.AvgPool2d(3), width=3), (2, 8, 8)),
    "layer norm": Case(chain(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, LABELS)), (6,)),
    "layer norm of steps": Case(chain(nn.LayerNorm((2, 6)), nn.Flatten(), nn.Linear(36, LABELS)), (3, 2, 6)),
    "layer norm, plain": Case(chain(nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, LABELS)), (6,)),
    "group norm": Case(image(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), width=4 * 36), (2, 8, 8)),
    "words": Case(Words, (9,)),
    "unused": Case(Unused, (6,)),
    "lenet": Case(lambda: build_network("lenet", labels=LABELS, record_shape=(1, 16, 16)), (1, 16, 16)),
    "called twice": Case(Twice, (6,), ruled=False),
    "tied": Case(Tied, (LABELS,), ruled=False),
    "used behind the layer": Case(UsedBehindTheLayer, (LABELS,), ruled=False),
    "loose": Case(Loose, (6,), ruled=False),
    "time first": Case(TimeFirst, (RECORDS, 4), ruled=False),
    "folded time": Case(FoldedTime, (3, 4), ruled=False),
    "other layers": Case(chain(nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, LABELS)), (6,), ruled=False),
    "transposed": Case(image(nn.ConvTranspose2d(2, 3, 3), width=300), (2, 8, 8), ruled=False),
}
