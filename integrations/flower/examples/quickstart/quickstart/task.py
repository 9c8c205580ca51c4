"""The model, the data of a node, training and evaluation."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TEST_RECORDS = 360


class Net(nn.Module):
    """A small network for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 16)
        self.output = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.tanh(self.hidden(images)))
        return scores


def load_data(partition_id: int, num_partitions: int) -> TensorDataset:
    """The training records of one node: every `num_partitions`-th record."""
    images, labels = _digits()
    chosen = slice(partition_id, len(images) - TEST_RECORDS, num_partitions)
    return TensorDataset(images[chosen], labels[chosen])


def load_test_data() -> TensorDataset:
    """The records that no node trains on."""
    images, labels = _digits()
    return TensorDataset(images[-TEST_RECORDS:], labels[-TEST_RECORDS:])


def train(net: nn.Module, data: TensorDataset, *, epochs: int, batch_size: int, lr: float) -> float:
    """Train in place; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for images, labels in DataLoader(data, batch_size=batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return sum(losses) / max(1, len(losses))


def accuracy(net: nn.Module, data: TensorDataset) -> float:
    """The part of the records whose label the model finds."""
    images, labels = data.tensors
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
