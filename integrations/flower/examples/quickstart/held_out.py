"""What the operator of a coordinator adds: the app's model as a workload, evaluated on records that no node has.

It needs torch and this folder, but no Flower.
"""

import sys
from pathlib import Path

from torch import nn

from qidpfl_shared.workloads.records import Records

sys.path.insert(0, str(Path(__file__).parent))

from quickstart.task import Net, load_data, load_test_data


class Digits:
    """The network of the app, with scikit-learn's digits."""

    labels = 10
    convex = False

    def __init__(self, data_dir: Path | None) -> None:
        pass

    def training(self) -> Records:
        images, labels = load_data(0, 1).tensors
        return Records(features=images.numpy(), labels=labels.numpy())

    def held_out(self) -> Records:
        images, labels = load_test_data().tensors
        return Records(features=images.numpy(), labels=labels.numpy())

    def network(self) -> nn.Module:
        return Net()
