"""Built-in data sets from files, without torch."""

import gzip
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.task_spec import WorkloadSpec
from qidpfl_shared.workloads.builtin import BuiltIn
from qidpfl_shared.workloads.datasets.folder import default_folder
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import DataMissing, LayoutMismatch, UnknownWorkload


def spec(dataset: str, network: str = "linear", *, labels: int = 10, convex: bool = False) -> WorkloadSpec:
    return WorkloadSpec(dataset=dataset, network=network, labels=labels, convex=convex)


def loaded(folder: Path, dataset: str, network: str = "linear", *, labels: int = 10) -> BuiltIn:
    workload = load_workload(spec(dataset, network, labels=labels), data_dir=folder, download=False)
    assert isinstance(workload, BuiltIn)
    return workload


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def images(count: int, side: int = 28) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, side, side), dtype=np.uint8)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_mnist(folder: Path, pixels: np.ndarray, labels: list[int], *, prefix: str = "MNIST/raw/train") -> None:
    write(folder / f"{prefix}-images-idx3-ubyte", idx(pixels))
    write(folder / f"{prefix}-labels-idx1-ubyte", idx(np.array(labels)))


def write_batch(path: Path, content: Any, *, protocol: int = 4) -> None:
    write(path, pickle.dumps(content, protocol=protocol))


def batch(count: int) -> dict[str, Any]:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 3072), dtype=np.uint8)
    return {"data": pixels, "labels": [place % 10 for place in range(count)]}


def test_the_digits_are_divided_as_promised() -> None:
    workload = load_workload(preset("digits").workload)
    training, held_out = workload.training(), workload.held_out()
    assert held_out is not None
    assert training.features.shape == (1437, 64)
    assert held_out.features.shape == (360, 64)
    assert training.features.dtype == np.uint8
    inputs = training.inputs()
    assert (inputs.min(), inputs.max()) == (0.0, 1.0)
    assert training.label_counts(10).min() > 130


def test_the_parts_of_the_digits_are_those_of_scikit_learn_in_order() -> None:
    from sklearn.datasets import load_digits

    workload = load_workload(preset("digits").workload)
    parts = [workload.training(), workload.held_out()]
    found = np.concatenate([part.inputs() for part in parts if isinstance(part, Records)])
    assert np.array_equal(found, (load_digits().data / 16).astype(np.float32))


def test_records_are_read_once() -> None:
    workload = load_workload(preset("digits").workload)
    assert workload.training() is workload.training()


@pytest.mark.slow
def test_no_data_set_loads_torch() -> None:
    script = (
        "import sys\n"
        "from qidpfl_shared.protocol.presets import preset\n"
        "from qidpfl_shared.workloads.loading import load_workload\n"
        "load_workload(preset('digits').workload).training()\n"
        "print(*sys.modules)"
    )
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "sklearn.datasets" in names
    assert not {"torch", "torchvision"} & set(names)


def test_mnist_is_flat_for_softmax_regression_and_an_image_for_lenet(tmp_path: Path) -> None:
    pixels = images(6)
    write_mnist(tmp_path, pixels, [0, 1, 2, 3, 4, 9])
    flat, image = loaded(tmp_path, "mnist"), loaded(tmp_path, "mnist", "lenet")
    assert np.array_equal(flat.training().features, pixels.reshape(6, 784))
    assert np.array_equal(image.training().features, pixels[:, None])
    assert flat.training().inputs().max() <= 1.0
    assert flat.training().labels.tolist() == [0, 1, 2, 3, 4, 9]
    assert (flat.record_shape, image.record_shape) == ((784,), (1, 28, 28))


def test_packed_files_are_read_too(tmp_path: Path) -> None:
    write_mnist(tmp_path, images(4), [1, 2, 3, 4], prefix="MNIST/raw/t10k")
    expected = loaded(tmp_path, "mnist").held_out()
    for path in (tmp_path / "MNIST" / "raw").iterdir():
        write(path.with_name(f"{path.name}.gz"), gzip.compress(path.read_bytes()))
        path.unlink()
    found = loaded(tmp_path, "mnist").held_out()
    assert expected is not None and found is not None
    assert found.fingerprint() == expected.fingerprint()


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    pixels = images(5)
    write_mnist(tmp_path, pixels, [0, 9, 10, 36, 61], prefix="EMNIST/raw/emnist-byclass-train")
    training = loaded(tmp_path, "emnist", "lenet", labels=62).training()
    assert np.array_equal(training.features[:, 0], pixels.transpose(0, 2, 1))


def test_emnist_small_is_a_fixed_choice(tmp_path: Path) -> None:
    labels = [place % 62 for place in range(2500)]
    write_mnist(tmp_path, np.zeros((2500, 28, 28)), labels, prefix="EMNIST/raw/emnist-byclass-test")
    parts = [loaded(tmp_path, "emnist-small", "lenet", labels=62).held_out() for _ in range(2)]
    assert parts[0] is not None and parts[1] is not None
    assert len(parts[0]) == 2000
    assert parts[0].fingerprint() == parts[1].fingerprint()
    assert parts[0].labels[:8].tolist() != labels[:8]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_cifar_batches_follow_each_other(tmp_path: Path, protocol: int) -> None:
    for number in range(1, 6):
        write_batch(tmp_path / f"cifar-10-batches-py/data_batch_{number}", batch(number), protocol=protocol)
    training = loaded(tmp_path, "cifar10", "lenet").training()
    assert training.features.shape == (15, 3, 32, 32)
    assert np.array_equal(training.features[0], batch(1)["data"][0].reshape(3, 32, 32))
    inputs = training.inputs()
    assert -2.0 <= inputs.min() < -1.9 and 1.9 < inputs.max() <= 2.0 + 1e-5


def test_the_network_of_mcmahan_gets_the_centre_of_the_image(tmp_path: Path) -> None:
    write_batch(tmp_path / "cifar-10-batches-py/test_batch", batch(3))
    whole = loaded(tmp_path, "cifar10", "lenet").held_out()
    centre = loaded(tmp_path, "cifar10", "mcmahan").held_out()
    assert whole is not None and centre is not None
    assert np.array_equal(centre.features, whole.features[:, :, 4:28, 4:28])


def test_a_batch_as_python_2_wrote_it_is_read(tmp_path: Path) -> None:
    # Strings of Python 2 are bytes, and numpy's module had another name.
    values = bytes(range(256)) * 12
    text = (
        b"\x80\x02}q\x00(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + struct.pack("<I", len(values)) + values + b"tbU\x06labels]K\x07au."
    )
    write(tmp_path / "cifar-10-batches-py/test_batch", text)
    held_out = loaded(tmp_path, "cifar10").held_out()
    assert held_out is not None
    assert held_out.labels.tolist() == [7]
    assert held_out.features.tobytes() == values


class Touch:
    """What a forged file would do: call a function when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))


def test_a_forged_batch_runs_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "cifar-10-batches-py/test_batch"
    write_batch(path, {**batch(1), "filenames": Touch(victim)})
    with pytest.raises(DataMissing, match="which a batch of images does not need"):
        loaded(tmp_path, "cifar10").held_out()
    assert not victim.exists()
    pickle.loads(path.read_bytes())
    assert victim.exists(), "plain pickle would have run it"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no pickle at all", "cannot be read"),
        (pickle.dumps([1, 2]), "no data and labels"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}, protocol=4), "rows of 3072 bytes"),
        (pickle.dumps({"data": np.zeros((2, 300), np.uint8), "labels": [0, 1]}, protocol=4), "rows of 3072 bytes"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, protocol=4), "one label"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, protocol=4), "one label"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, []]}, protocol=4), "one label"),
    ],
)
def test_a_damaged_batch_is_a_clear_error(tmp_path: Path, content: bytes, problem: str) -> None:
    write(tmp_path / "cifar-10-batches-py/test_batch", content)
    with pytest.raises(DataMissing, match=problem) as caught:
        loaded(tmp_path, "cifar10").held_out()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pixels", "labels", "problem"),
    [
        (idx(images(2))[:-1], idx(np.array([0, 1])), "damaged"),
        (idx(images(2)), idx(np.array([0, 1, 2])), "not 3 images"),
        (idx(images(2, side=27)), idx(np.array([0, 1])), "not 2 images of 28x28"),
        (idx(images(2)), idx(np.array([0, 10])), "labels from 0 to 9"),
        (idx(images(0)), idx(np.array([])), "labels from 0 to 9"),
        (b"", idx(np.array([0, 1])), "is not an IDX file"),
        (idx(np.array([0, 1])), idx(np.array([0, 1])), "is not an IDX file"),
    ],
)
def test_damaged_idx_files_are_a_clear_error(tmp_path: Path, pixels: bytes, labels: bytes, problem: str) -> None:
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte", pixels)
    write(tmp_path / "MNIST/raw/train-labels-idx1-ubyte", labels)
    with pytest.raises(DataMissing, match=problem):
        loaded(tmp_path, "mnist").training()


def test_a_damaged_packed_file_is_a_clear_error(tmp_path: Path) -> None:
    write_mnist(tmp_path, images(2), [0, 1])
    packed = gzip.compress(idx(images(2)))[:-20]
    write(tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz", packed)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").unlink()
    with pytest.raises(DataMissing, match="damaged"):
        loaded(tmp_path, "mnist").training()


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "emnist", "emnist-small"])
def test_missing_files_are_named_together_with_their_place(tmp_path: Path, dataset: str) -> None:
    labels = 62 if dataset.startswith("emnist") else 10
    workload = loaded(tmp_path, dataset, labels=labels)
    with pytest.raises(DataMissing, match=f"no .* in {tmp_path}; put the files there, or allow their download"):
        workload.training()


def test_the_default_folder_is_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "qidpfl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "qidpfl"


@pytest.mark.parametrize("name", PRESETS)
def test_the_workload_of_every_preset_is_known(name: str) -> None:
    wanted = preset(name).workload
    workload = load_workload(wanted)
    assert (workload.labels, workload.convex) == (wanted.labels, wanted.convex)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (spec("iris"), "no data set 'iris'; use one of digits, .*--workload"),
        (spec("digits", "resnet"), "no network 'resnet'"),
        (spec("digits", "lenet"), "at least 16x16, but 'digits' has 8x8"),
        (spec("mnist", "mcmahan"), "colour images of at least 24x24"),
        (spec("os:system"), "not imported. If you trust this code, start with --workload os:system"),
    ],
)
def test_an_unknown_workload_is_a_clear_error(wanted: WorkloadSpec, problem: str) -> None:
    with pytest.raises(UnknownWorkload, match=problem):
        load_workload(wanted)


def test_what_a_task_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "remote_code.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("remote_code:Workload", f"x{tmp_path}/remote_code.py:Workload"):
        with pytest.raises(UnknownWorkload, match="not imported"):
            load_workload(spec(name))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [(spec("digits", labels=9), "10 labels, but the task has 9"), (spec("cifar10", "lenet", convex=True), "convex")],
)
def test_a_workload_must_be_what_the_task_says(wanted: WorkloadSpec, problem: str) -> None:
    with pytest.raises(LayoutMismatch, match=problem):
        load_workload(wanted)
