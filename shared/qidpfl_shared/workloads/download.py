"""Download data sets through torchvision, which knows their addresses and checks their md5."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from .torchvision_import import import_torchvision
from .workload import DataMissing

_TIMEOUT_S = 60.0


def download(dataset: str, *, into: Path) -> None:
    """Download the files of a data set into a folder. Progress goes to standard error.

    The files are downloaded to a temporary folder and moved when they are complete. Several processes may therefore
    download at once, and an interrupted download leaves no incomplete file. Raises `DataMissing` if it fails.
    """
    try:
        datasets = import_torchvision()
    except ImportError as error:
        raise DataMissing(f"{dataset}: torchvision is needed for its download; install it") from error
    made = [folder for folder in (into, *into.parents) if not folder.exists()]
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=into) as name, _timeout():
            _FETCH[dataset](datasets, Path(name))
            _move(Path(name), into)
    except (OSError, RuntimeError, EOFError) as error:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        reason = " ".join(str(error).split())
        raise DataMissing(f"{dataset}: the download to {into} failed: {reason}") from error


def _fetch_mnist(datasets: ModuleType, root: Path) -> None:
    datasets.MNIST(root, download=True)


def _fetch_emnist(datasets: ModuleType, root: Path) -> None:
    datasets.EMNIST(root, split="byclass", download=True)


def _fetch_cifar10(datasets: ModuleType, root: Path) -> None:
    # Not through torchvision's data set, which would unpickle the downloaded files.
    source = datasets.CIFAR10
    datasets.utils.download_and_extract_archive(source.url, root, filename=source.filename, md5=source.tgz_md5)
    (root / source.filename).unlink()


_FETCH: dict[str, Callable[[ModuleType, Path], None]] = {
    "mnist": _fetch_mnist,
    "emnist": _fetch_emnist,
    "cifar10": _fetch_cifar10,
}


def _move(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)


@contextmanager
def _timeout() -> Iterator[None]:
    """Set a timeout for connections. torchvision opens them without one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
