"""What a process has written itself it checks by a fast checksum; all other blobs by their SHA-256."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_server.errors import UnreadableBlob
from qidpfl_server.store.blob_checks import Checksums
from qidpfl_server.store.blobs import FolderBlobs

DATA = bytes(range(256)) * 1000
Read = Callable[[FolderBlobs, str], bytes]


def whole(blobs: FolderBlobs, digest: str) -> bytes:
    return blobs.get(digest)


def by_pieces(blobs: FolderBlobs, digest: str) -> bytes:
    buffer = bytearray(len(DATA))
    with blobs.reader(digest, len(DATA)) as reader:
        for start in range(0, len(DATA), 1000):
            reader.read_into(memoryview(buffer)[start : start + 1000])
        reader.finish()
    return bytes(buffer)


READS = pytest.mark.parametrize("read", [whole, by_pieces])


def flip_a_bit(blobs: FolderBlobs, digest: str) -> None:
    path = blobs.root / "objects" / digest
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@READS
def test_a_blob_of_this_process_is_read_without_its_sha256(tmp_path: Path, read: Read) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    digest = blobs.put(DATA)
    assert not blobs._checksums.check(digest).is_slow
    assert read(blobs, digest) == DATA


@READS
def test_a_flipped_bit_is_found_by_the_process_that_wrote_the_blob(tmp_path: Path, read: Read) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    digest = blobs.put(DATA)
    flip_a_bit(blobs, digest)
    with pytest.raises(UnreadableBlob):
        read(blobs, digest)


@READS
def test_a_flipped_bit_is_found_after_a_restart(tmp_path: Path, read: Read) -> None:
    digest = FolderBlobs(tmp_path / "blobs").put(DATA)
    restarted = FolderBlobs(tmp_path / "blobs")
    assert restarted._checksums.check(digest).is_slow
    assert read(restarted, digest) == DATA
    flip_a_bit(restarted, digest)
    with pytest.raises(UnreadableBlob):
        read(restarted, digest)


@READS
def test_a_blob_that_grows_or_shrinks_is_found(tmp_path: Path, read: Read) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    for change in (DATA[:-1], DATA + b"x"):
        digest = blobs.put(DATA)
        (blobs.root / "objects" / digest).write_bytes(change)
        with pytest.raises(UnreadableBlob):
            read(blobs, digest)


def test_the_memory_for_checksums_is_bounded_and_forgets_the_oldest() -> None:
    checksums = Checksums(limit=3)
    for name in "abcde":
        checksums.remember(name, "checksum")
    assert len(checksums) == 3
    assert [checksums.check(name).is_slow for name in "abcde"] == [True, True, False, False, False]


def test_a_released_file_is_opened_again_and_keeps_its_bytes(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    with blobs.stage() as blob:
        for start in range(0, len(DATA), 1000):
            blob.write(DATA[start : start + 1000])
            blob.release()
            assert str(blob.path) not in open_files()
        blob.sync()
        blobs.publish(blob)
    assert blobs.get(blob.digest) == DATA


def test_a_released_blob_that_is_not_published_leaves_no_file(tmp_path: Path) -> None:
    with FolderBlobs(tmp_path / "blobs").stage() as blob:
        blob.write(DATA)
        blob.release()
        assert blob.path.exists()
    assert not blob.path.exists()


def open_files() -> list[str]:
    return [str(Path(f"/proc/self/fd/{name}").readlink()) for name in os.listdir("/proc/self/fd") if is_open(name)]


def is_open(name: str) -> bool:
    """The descriptor of the listing itself is closed already."""
    return Path(f"/proc/self/fd/{name}").is_symlink()
