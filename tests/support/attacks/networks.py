"""The networks that the search attacks: those of the tests of clipping, and more kinds of layers."""

from torch import Tensor, nn
from torch.nn import functional

from support.training.networks import CASES, LABELS, Case, chain

_STEPS = 3
_WIDTH = 4


class Phrase(nn.Module):
    """An embedding whose positions have weights of their own, so that the gradients of one row can cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.layer = nn.Linear(6, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(self.table(inputs.abs().long() % 4).flatten(1))
        return answers


class Table(nn.Module):
    """A longer phrase, for which a number that is not in the table is an error."""

    def __init__(self, *, negative: bool) -> None:
        super().__init__()
        self._negative = negative
        self.table = nn.Embedding(4, 16)
        self.layer = nn.Linear(4 * 16, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        indices = inputs.long() if self._negative else inputs.abs().long()
        answers: Tensor = self.layer(self.table(indices).flatten(1))
        return answers


class SharedOverPositions(nn.Module):
    """A linear layer whose answers at two positions are added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(30, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(inputs).sum(1)
        return answers


class Recurrent(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, kind: type[nn.RNN | nn.GRU | nn.LSTM]) -> None:
        super().__init__()
        self.inner = kind(_WIDTH, _WIDTH, batch_first=True)
        self.outer = nn.Linear(_WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.outer(self.inner(inputs)[0][:, -1])
        return answers


class Attention(nn.Module):
    """Self-attention over the steps of a record, with a residual connection and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(_WIDTH)
        self.outer = nn.Linear(_WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        # In inference torch takes another implementation, so training and evaluation agree only with weights asked for.
        attended, _ = self.attention(inputs, inputs, inputs, need_weights=True)
        answers: Tensor = self.outer(self.norm(inputs + attended).mean(1))
        return answers


class AttentionOfLayers(nn.Module):
    """Self-attention that consists of linear layers only, which have fast rules."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
        self.outer = nn.Linear(_STEPS * _WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        attended = functional.scaled_dot_product_attention(self.query(inputs), self.key(inputs), self.value(inputs))
        answers: Tensor = self.outer(attended.flatten(1))
        return answers


class MixesThroughZeros(nn.Module):
    """Adds the mean over the *batch* of a layer. All parameters start at zero, where the mixing is invisible."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.outer = nn.Linear(6, LABELS)
        _zero(self)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.outer(inputs + self.mix(inputs).mean(0, keepdim=True))
        return answers


class StepsFirst(nn.Module):
    """Attention that takes the first dimension, the records, for the steps. All parameters start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)
        self.outer = nn.Linear(_STEPS * _WIDTH, LABELS)
        _zero(self)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inner(inputs).transpose(0, 1)
        attended = functional.scaled_dot_product_attention(hidden, hidden, hidden)
        answers: Tensor = self.outer(attended.transpose(0, 1).flatten(1))
        return answers


def _zero(network: nn.Module) -> None:
    for tensor in network.parameters():
        nn.init.zeros_(tensor)


def _mcmahan() -> nn.Module:
    """The layers of the McMahan network, with fewer channels."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(4, 4, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 8),
        nn.ReLU(),
        nn.Linear(8, LABELS),
    )


# Networks that mix records. A trainer must refuse them; if it accepts one, the search measures the damage.
MIXING = {
    "mixes through zeros": Case(MixesThroughZeros, (6,)),
    "steps first": Case(StepsFirst, (_STEPS, _WIDTH)),
}

ZOO = {
    # This case takes the number of records of a batch for its steps, and exists for another test.
    **{name: case for name, case in CASES.items() if name != "time first"},
    "one weight": Case(chain(nn.Linear(1, 2, bias=False)), (1,)),
    "one feature": Case(chain(nn.Linear(1, 2)), (1,)),
    "three features": Case(chain(nn.Linear(3, 2, bias=False)), (3,)),
    "phrase": Case(Phrase, (2,)),
    "table": Case(lambda: Table(negative=False), (4,)),
    "table without negatives": Case(lambda: Table(negative=True), (4,)),
    "shared over positions": Case(SharedOverPositions, (2, 30)),
    "rnn": Case(lambda: Recurrent(nn.RNN), (_STEPS, _WIDTH), ruled=False),
    "gru": Case(lambda: Recurrent(nn.GRU), (_STEPS, _WIDTH), ruled=False),
    "lstm": Case(lambda: Recurrent(nn.LSTM), (_STEPS, _WIDTH), ruled=False),
    "attention": Case(Attention, (_STEPS, _WIDTH), ruled=False),
    "attention of layers": Case(AttentionOfLayers, (_STEPS, _WIDTH)),
    "mcmahan, narrow": Case(_mcmahan, (3, 8, 8)),
    "saturated": Case(chain(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Hardtanh(), nn.Linear(8, LABELS)), (6,)),
    "dead units": Case(chain(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU6(), nn.Linear(8, LABELS)), (6,)),
    **MIXING,
}
