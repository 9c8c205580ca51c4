"""Downloads of data sets through torchvision, which knows where they are and checks their md5."""

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
    """Put the files of a data set into a folder; progress goes to standard error.

    They are fetched beside their place and moved when they are complete, so that several programs may do it at once
    and an interrupted download leaves nothing that looks like data.
    """
    try:
        datasets = import_torchvision()
    except ImportError as error:
        raise DataMissing(f"{dataset}: torchvision, which downloads it, is not installed") from error
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
    # Not through the data set itself, which would unpickle what it has fetched.
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
    """A limit for connections that torchvision opens without one."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
