"""Files that survive a crash: each is complete under its name, or not there at all.

A file is written under another name, fsynced and renamed, and then its folder is fsynced, because a rename is durable
only with the folder. This is the one place that knows these steps.
"""

import os
from pathlib import Path


def fsync_dir(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Create a folder and its missing parents. Each new name is fsynced in its parent, so that a power cut keeps it.

    `mode` is that of the folder itself. An existing folder stays as it is.
    """
    if folder.is_dir():
        return
    create_folder(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    fsync_dir(folder.parent)


def write_synced(path: Path, data: bytes, *, exclusive: bool = False, mode: int = 0o666) -> None:
    """Write a file and fsync its bytes; its name is durable only after `fsync_dir`.

    Raises:
        FileExistsError: with `exclusive`, if the file exists.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else os.O_TRUNC)
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_durably(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Create a file or replace its content as a whole. A text is written as UTF-8. `mode` is limited by the umask."""
    unfinished = path.with_name(f".{path.name}.part")
    # A file that a killed process has left may have another mode.
    unfinished.unlink(missing_ok=True)
    try:
        write_synced(unfinished, data.encode() if isinstance(data, str) else data, mode=mode)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    fsync_dir(path.parent)
