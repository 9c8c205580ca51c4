"""Networks, custom workloads, downloads, and the real data sets if they are present."""

import gzip
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qidpfl_shared.core.selection import label_distances
from qidpfl_shared.protocol.presets import EMNIST_TRAINING_LABELS, PRESETS, preset
from qidpfl_shared.protocol.task_spec import WorkloadSpec
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.networks import (
    build_network,
    check_layout,
    check_records_stay_apart,
    layout_of,
    load_parameters,
)
from qidpfl_shared.workloads.partitions import all_shards
from qidpfl_shared.workloads.torchvision_import import import_torchvision
from qidpfl_shared.workloads.workload import DataMissing, LayoutMismatch, UnknownWorkload, Workload, WorkloadError
from support.peers.local_http import served

ROOT = Path(__file__).parents[3]
EXAMPLE = f"{ROOT / 'examples' / 'csv_workload.py'}:Cells"
TWO_LABELS = WorkloadSpec(dataset="anything", network="own", labels=2)

data_dir = os.environ.get("QIDPFL_DATA_DIR")
needs_data = pytest.mark.skipif(not data_dir, reason="QIDPFL_DATA_DIR names no folder with MNIST, CIFAR-10 and EMNIST")


@pytest.mark.parametrize("name", PRESETS)
def test_the_network_of_every_preset_has_the_layout_of_its_task(name: str) -> None:
    spec = preset(name)
    check_layout(load_workload(spec.workload).network(), spec.layout)


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("resnet", (3, 32, 32), "there is no network 'resnet'; use one of linear, mlp, lenet, mcmahan"),
        ("lenet", (1, 15, 15), "square images of at least 16x16"),
        ("lenet", (1, 28, 32), "square images"),
        ("lenet", (784,), "square images"),
        ("mcmahan", (3, 32, 32), r"shape \(3, 24, 24\)"),
    ],
)
def test_a_network_says_which_records_it_takes(name: str, shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(UnknownWorkload, match=problem):
        build_network(name, labels=10, record_shape=shape)


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        (nn.Linear(4, 2), r"'weight' of shape \(2, 4\) where the task has 'weight' of \(2, 3\)"),
        (nn.Sequential(nn.Linear(3, 2)), "'0.weight'"),
        (nn.Linear(3, 2, bias=False), "1 tensors, but the task has 2"),
        (nn.Linear(3, 2).double(), "float32 only"),
        (nn.Linear(3, 2).requires_grad_(False), "frozen"),
        (nn.LazyLinear(2), "no shape yet"),
        (nn.ReLU(), "no parameters"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_network_with_other_parameters_is_refused(network: nn.Module, problem: str) -> None:
    layout = layout_of(nn.Linear(3, 2))
    with pytest.raises(LayoutMismatch, match=problem):
        check_layout(network, layout)
    with pytest.raises(LayoutMismatch, match=problem):
        load_parameters(network, np.zeros(8, dtype=np.float32), layout)


def test_a_network_with_more_tensors_than_the_task_is_refused() -> None:
    layout = TensorLayout(tensors=(TensorSpec(name="weight", shape=(2, 3)),))
    with pytest.raises(LayoutMismatch, match="2 tensors, but the task has 1"):
        check_layout(nn.Linear(3, 2), layout)


class Centred(nn.Module):
    """Mixes records without any layer that would show it."""

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return records - records.mean(dim=0)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_layers_that_mix_records_are_refused_by_name(layer: nn.Module) -> None:
    network = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    with pytest.raises(WorkloadError, match=f"layer '1' \\({type(layer).__name__}\\) mixes records"):
        check_records_stay_apart(network)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Dropout(), nn.InstanceNorm1d(4)])
def test_layers_that_keep_records_apart_are_accepted(layer: nn.Module) -> None:
    check_records_stay_apart(nn.Sequential(nn.Linear(4, 4), layer))


def test_mixing_of_records_outside_layers_is_found_with_examples() -> None:
    network = nn.Sequential(Centred(), nn.Linear(4, 2)).train()
    check_records_stay_apart(network)
    with pytest.raises(WorkloadError, match="depends on the other records"):
        check_records_stay_apart(network, torch.randn(3, 4))
    assert network.training


@pytest.mark.parametrize("value", [3e38, float("inf"), float("nan")])
def test_a_record_that_overflows_is_not_blamed_on_the_network(value: float) -> None:
    # Whether such a sum ends as a number, as infinity or as none depends on its order, and so on the weights.
    for seed in range(20):
        torch.manual_seed(seed)
        records = torch.randn(5, 6)
        records[2] = value
        check_records_stay_apart(nn.Linear(6, 3), records)


def example(data_dir: Path | None = None) -> Workload:
    return load_workload(TWO_LABELS, custom=EXAMPLE, data_dir=data_dir)


def test_the_example_on_a_csv_file_can_be_learnt_and_divided() -> None:
    workload = example()
    training, held_out = workload.training(), workload.held_out()
    assert held_out is not None
    assert (len(training), len(held_out)) == (456, 113)
    network = workload.network()
    optimiser = torch.optim.SGD(network.parameters(), lr=5.0)
    inputs, labels = torch.from_numpy(training.inputs()), torch.from_numpy(training.labels)
    for _ in range(500):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    predicted = network(torch.from_numpy(held_out.inputs())).argmax(dim=1).numpy()
    assert np.mean(predicted == held_out.labels) > 0.88


def test_the_example_reads_the_owners_folder(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=f"cannot read {tmp_path}"):
        example(tmp_path).training()
    rows = (ROOT / "examples" / "cells.csv").read_text().splitlines()
    (tmp_path / "cells.csv").write_text("\n".join(rows[:11]))
    assert len(example(tmp_path).training()) == 8


def test_a_class_is_also_found_in_a_module_of_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(ROOT / "examples")
    workload = load_workload(TWO_LABELS, custom="csv_workload:Cells")
    assert workload.labels == 2
    monkeypatch.delitem(sys.modules, "csv_workload")


OWN = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from torch import nn
from qidpfl_shared.workloads.records import Records

@dataclass
class Own:
    data_dir: Path | None
    labels = {labels}
    convex = {convex}
    def training(self):
        return {training}
    def held_out(self):
        return None
    def network(self):
        return {network}
"""
GOOD = {
    "labels": "2",
    "convex": "False",
    "training": "Records(features=np.zeros((3, 4)), labels=np.array([0, 1, 0]))",
    "network": "nn.Linear(4, 2)",
}


def own(folder: Path, **changes: str) -> Workload:
    path = folder / "own.py"
    path.write_text(OWN.format(**{**GOOD, **changes}))
    return load_workload(TWO_LABELS, custom=f"{path}:Own")


def test_a_valid_custom_workload_is_accepted(tmp_path: Path) -> None:
    workload = own(tmp_path)
    assert len(workload.training()) == 3
    assert workload.held_out() is None
    assert layout_of(workload.network()).dimension == 10


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": "'two'"}, "labels must be a whole number"),
        ({"labels": "True"}, "labels must be a whole number"),
        ({"labels": "3"}, "3 labels, but the task has 2"),
        ({"convex": "0"}, "convex must be True or False"),
        ({"training": "None\n    training = None"}, "training must be a method"),
        ({"labels": "2\n    del labels"}, "lacks labels"),
        ({"labels": "2\n    def __post_init__(self): raise OSError('no\\ndisk')"}, "failed: OSError: no disk"),
        ({"labels": "1/0"}, "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_wrong_class_is_refused_with_one_line(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem) as caught:
        own(tmp_path, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        ("[1, 2, 3]", "a list, not Records"),
        ("Records(features=np.zeros((0, 4)), labels=np.zeros(0, dtype=int))", "no records"),
        ("Records(features=np.zeros((2, 4)), labels=np.array([0, 2]))", "labels from 0 to 2, not from 0 to 1"),
        ("Records(features=np.zeros((2, 4)), labels=np.array([-1, 1]))", "labels from -1 to 1"),
        ("Records(features=np.zeros((2, 4)), labels=np.array([0.0, 1.0]))", "not a row of whole numbers"),
        ("Records(features=np.full((2, 4), 'x'), labels=np.array([0, 1]))", "not numbers"),
        ("Records(features=np.full((2, 4), np.nan), labels=np.array([0, 1]))", "not finite"),
    ],
)
def test_wrong_records_are_refused(tmp_path: Path, training: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=rf"training\(\) returned .*{problem}"):
        own(tmp_path, training=training).training()


@pytest.mark.parametrize(
    ("network", "problem"),
    [("'lenet'", "a str, not a torch module"), ("nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))", "mixes records")],
)
def test_wrong_networks_are_refused(tmp_path: Path, network: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        own(tmp_path, network=network).network()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Cells", "neither module:Class nor"),
        ("no_such_module:Cells", "'no_such_module' cannot be imported"),
        ("no/such/file.py:Cells", "no file no/such/file.py"),
        ("json:Cells", "json has no class 'Cells'"),
    ],
)
def test_a_class_that_is_not_there_is_a_clear_error(name: str, problem: str) -> None:
    with pytest.raises(UnknownWorkload, match=problem):
        load_workload(TWO_LABELS, custom=name)


def test_a_task_that_claims_convexity_needs_a_workload_that_does() -> None:
    claimed = WorkloadSpec(dataset="anything", network="own", labels=2, convex=True)
    assert load_workload(claimed, custom=EXAMPLE).convex
    source = f"{__file__}:Curved"
    with pytest.raises(LayoutMismatch, match="convex"):
        load_workload(claimed, custom=source)


class Curved:
    """A workload that is not convex."""

    labels, convex = 2, False

    def __init__(self, *, data_dir: Path | None) -> None:
        self.training = self.held_out = self.network = lambda: None


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real web server of small MNIST files in place of torchvision's mirrors."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    resources = []
    for part, count in (("train", 5), ("t10k", 2)):
        pixels = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(784 * count)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(range(count))
        for kind, data in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = folder / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(data))
            resources.append((path.name, hashlib.md5(path.read_bytes()).hexdigest()))
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    source = import_torchvision().MNIST
    with served(partial(quiet, directory=str(folder))) as address:
        monkeypatch.setattr(source, "mirrors", [f"{address}/"])
        monkeypatch.setattr(source, "resources", resources)
        yield folder


def test_missing_files_are_downloaded_once_with_progress(
    mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "data"
    assert len(load_workload(preset("mnist").workload, data_dir=target).training()) == 5
    assert "100" in capsys.readouterr().err
    assert sorted(path.name for path in target.iterdir()) == ["MNIST"]
    for path in mirror.iterdir():
        path.unlink()
    held_out = load_workload(preset("mnist").workload, data_dir=target).held_out()
    assert held_out is not None and held_out.labels.tolist() == [0, 1]


def test_a_file_with_another_md5_is_refused_and_leaves_nothing(mirror: Path, tmp_path: Path) -> None:
    (mirror / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"forged"))
    target = tmp_path / "data"
    with pytest.raises(DataMissing, match=r"mnist: the download to .* failed") as caught:
        load_workload(preset("mnist").workload, data_dir=target).training()
    assert "\n" not in str(caught.value)
    assert not target.exists()


def test_a_mirror_that_does_not_answer_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_torchvision().CIFAR10, "url", "http://127.0.0.1:1/cifar.tar.gz")
    with pytest.raises(DataMissing, match=r"cifar10: the download to .* failed"):
        load_workload(preset("cifar10").workload, data_dir=tmp_path).held_out()
    assert list(tmp_path.iterdir()) == []


@needs_data
@pytest.mark.parametrize(
    ("name", "training", "held_out", "shape"),
    [
        ("mnist", 60_000, 10_000, (784,)),
        ("cifar10", 50_000, 10_000, (3, 32, 32)),
        ("cifar10-paper", 50_000, 10_000, (3, 24, 24)),
        ("emnist-small", 10_000, 2_000, (1, 28, 28)),
    ],
)
def test_the_real_data_have_their_sizes_and_fit_their_networks(
    name: str, training: int, held_out: int, shape: tuple[int, ...]
) -> None:
    workload = load_workload(preset(name).workload, data_dir=Path(str(data_dir)), download=False)
    parts = workload.training(), workload.held_out()
    assert parts[1] is not None
    assert (len(parts[0]), len(parts[1])) == (training, held_out)
    assert parts[0].features.shape[1:] == parts[1].features.shape[1:] == shape
    assert (parts[0].label_counts(workload.labels) > 0).all()
    network = workload.network()
    examples = torch.from_numpy(parts[0].inputs(slice(0, 4)))
    check_records_stay_apart(network, examples)
    assert network(examples).shape == (4, workload.labels)


@needs_data
def test_real_emnist_has_the_labels_of_its_preset_and_upright_images() -> None:
    workload = load_workload(preset("emnist").workload, data_dir=Path(str(data_dir)), download=False)
    training = workload.training()
    reference = preset("emnist").label_reference([])
    (distance,) = label_distances(histograms=[training.label_counts(62)], reference=reference)
    assert distance < 0.02
    assert len(EMNIST_TRAINING_LABELS) == 62
    # An upright capital L is dark at the left and at the bottom; a transposed one at the top and at the right.
    letter = training.features[training.labels == 21, 0].mean(axis=0)
    assert letter[:, :14].sum() > 1.3 * letter[:, 14:].sum()
    assert letter[14:].sum() > 1.3 * letter[:14].sum()


@needs_data
@pytest.mark.parametrize("name", ["mnist", "mnist-bad-clients", "emnist-small", "cifar10"])
def test_the_real_shards_are_as_far_from_the_reference_as_the_presets_promise(name: str) -> None:
    spec = preset(name)
    labels = load_workload(spec.workload, data_dir=Path(str(data_dir)), download=False).training().labels
    partition = spec.workload.partition
    assert partition is not None
    histograms = [
        np.bincount(labels[indices], minlength=spec.workload.labels)
        for indices in all_shards(labels=labels, partition=partition)
    ]
    distances = label_distances(histograms=histograms, reference=spec.label_reference(histograms))
    bad = np.isin(np.arange(partition.clients), partition.two_class_ordinals)
    assert (distances[bad] > 1.5).all()
    assert 0.2 < distances[~bad].mean() < 0.8
