"""What every blob store does: a folder and a real object store."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_server.clock import seconds
from qidpfl_server.errors import DamagedState, UnreadableBlob
from qidpfl_server.store.blobs import Blobs, FolderBlobs
from support.blob_places import BlobPlace, BucketPlace, FolderPlace
from support.fakes import NoClaims
from support.store_rows import at_once

DATA = os.urandom(100_000)
# Three parts of a multipart upload.
LARGE = os.urandom(20 << 20)
HOUR = seconds(3600.0)
Read = Callable[[Blobs, str, int], bytes]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BlobPlace:
    if request.param == "folder":
        return FolderPlace(tmp_path / "blobs")
    return BucketPlace(request.getfixturevalue("bucket_url"), tmp_path / "staging")


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def whole(blobs: Blobs, digest: str, byte_length: int) -> bytes:
    return blobs.get(digest)


def by_pieces(blobs: Blobs, digest: str, byte_length: int) -> bytes:
    data = memoryview(bytearray(byte_length))
    with blobs.reader(digest, byte_length, together=3) as reader:
        for start in range(0, byte_length, 60_000):
            reader.read_into(data[start : start + 60_000])
        reader.finish()
    return bytes(data)


BOTH = pytest.mark.parametrize("read", [whole, by_pieces])


@BOTH
@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_another_process_reads_the_bytes_that_were_put(place: BlobPlace, data: bytes, read: Read) -> None:
    digest = place.open().put(data)
    assert digest == digest_of(data)
    assert read(place.open(create=False), digest, len(data)) == data


def test_an_empty_blob_is_a_blob(place: BlobPlace) -> None:
    blobs = place.open()
    assert blobs.get(blobs.put(b"")) == b""


@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_the_same_bytes_are_stored_once(place: BlobPlace, data: bytes) -> None:
    blobs = place.open()
    assert blobs.put(data) == place.open().put(data)
    assert blobs.digests() == [digest_of(data)]


def test_several_processes_put_the_same_bytes_at_once(place: BlobPlace) -> None:
    processes = [place.open() for _ in range(6)]
    at_once(processes, lambda blobs: blobs.put(DATA))
    assert processes[0].digests() == [digest_of(DATA)]
    assert processes[0].get(digest_of(DATA)) == DATA


def test_a_staged_blob_is_written_in_pieces_and_leaves_no_file_behind(place: BlobPlace) -> None:
    blobs = place.open()
    with blobs.stage() as blob:
        for start in range(0, len(DATA), 30_000):
            blob.write(memoryview(DATA)[start : start + 30_000])
            blob.release()
        blob.sync()
        blobs.publish(blob)
        blobs.sync_names()
    assert blobs.get(blob.digest) == DATA
    assert place.staging() == []


def test_a_refused_blob_leaves_nothing(place: BlobPlace) -> None:
    blobs = place.open()
    with pytest.raises(RuntimeError), blobs.stage() as blob:
        blob.write(DATA)
        raise RuntimeError("refused")
    assert place.staging() == [] and blobs.digests() == []


def test_a_blob_that_is_read_again_is_there_for_its_transaction(place: BlobPlace) -> None:
    blobs = place.open()
    with blobs.stage(read_again=True) as blob:
        blob.write(DATA)
        blob.sync()
        blobs.publish(blob)
        assert blobs.get(blob.digest) == DATA
    assert blobs.get(blob.digest) == DATA and place.staging() == []


@BOTH
def test_a_missing_blob_is_unreadable(place: BlobPlace, read: Read) -> None:
    blobs = place.open()
    assert not blobs.has(digest_of(DATA))
    with pytest.raises(UnreadableBlob, match="is missing"):
        read(blobs, digest_of(DATA), len(DATA))


@BOTH
@pytest.mark.parametrize(
    "wrong", [DATA[:-1] + b"?", DATA[:-1], DATA + b"?", b"", LARGE], ids=["bit", "cut", "longer", "empty", "large"]
)
def test_wrong_bytes_are_never_returned(place: BlobPlace, read: Read, wrong: bytes) -> None:
    digest = place.open().put(DATA)
    place.overwrite(digest, wrong)
    with pytest.raises(UnreadableBlob):
        read(place.open(), digest, len(DATA))


@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_an_upload_of_the_same_bytes_repairs_a_damaged_blob(place: BlobPlace, data: bytes) -> None:
    digest = place.open().put(data)
    place.overwrite(digest, data[:-1] + bytes([data[-1] ^ 1]))
    place.open().put(data)
    assert place.open().get(digest) == data


def test_a_sweep_removes_what_is_old_and_not_referenced(place: BlobPlace) -> None:
    blobs = place.open()
    kept, orphan = blobs.put(b"kept"), blobs.put(b"orphan")
    assert blobs.sweep(lambda _: {kept}, NoClaims(), grace=HOUR) == 0
    assert blobs.sweep(lambda _: {kept}, NoClaims(), grace=0) == 1
    assert blobs.digests() == [kept] and not blobs.has(orphan)


def test_a_sweep_removes_old_files_that_are_being_written(place: BlobPlace) -> None:
    blobs = place.open()
    with blobs.stage() as forgotten:
        forgotten.write(DATA)
        assert blobs.sweep(lambda _: set(), NoClaims(), grace=HOUR) == 0
        place.make_old()
        assert blobs.sweep(lambda _: set(), NoClaims(), grace=HOUR) == 1
        assert place.staging() == []


def test_a_process_that_is_alone_removes_all_files_that_are_being_written(place: BlobPlace) -> None:
    blobs = place.open()
    with blobs.stage() as forgotten:
        forgotten.write(DATA)
        assert blobs.sweep_staging() == 1 and place.staging() == []


def test_removing_twice_is_no_error(place: BlobPlace) -> None:
    blobs = place.open()
    digest = blobs.put(DATA)
    blobs.remove(digest)
    blobs.remove(digest)
    assert not blobs.has(digest)


def test_all_processes_read_the_same_identity(place: BlobPlace) -> None:
    processes = [place.open() for _ in range(6)]
    found: list[tuple[str, bool]] = []
    at_once(processes, lambda blobs: found.append(blobs.folder_id()))
    assert len({identity for identity, _ in found}) == 1
    assert sum(is_new for _, is_new in found) == 1


def test_an_identity_is_replaced_and_forgotten(place: BlobPlace) -> None:
    blobs = place.open()
    first, _ = blobs.folder_id()
    blobs.set_folder_id("that of the store")
    assert place.open().folder_id() == ("that of the store", False)
    blobs.forget_folder_id()
    second, is_new = blobs.folder_id()
    assert is_new and second != first


def test_a_place_is_present_once_it_was_created(place: BlobPlace) -> None:
    blobs = place.open(create=False)
    assert not blobs.present
    blobs.create()
    assert blobs.present and place.open(create=False).present
    blobs.create()
    blobs.check()


def test_a_backup_has_the_bytes_of_every_place(place: BlobPlace, tmp_path: Path) -> None:
    blobs, backup = place.open(), FolderBlobs(tmp_path / "backup")
    for data in (DATA, LARGE):
        assert blobs.copy_to(backup.root, blobs.put(data), link=False)
        assert backup.get(digest_of(data)) == data
    assert not blobs.copy_to(backup.root, digest_of(b"missing"), link=False)


def test_a_backup_refuses_damaged_bytes(place: BlobPlace, tmp_path: Path) -> None:
    blobs, backup = place.open(), FolderBlobs(tmp_path / "backup")
    digest = blobs.put(DATA)
    place.overwrite(digest, DATA[:-1] + b"?")
    with pytest.raises(DamagedState):
        blobs.copy_to(backup.root, digest, link=False)
    assert backup.digests() == []


def test_an_object_store_without_conditions_is_asked_first(
    bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    blobs = BucketPlace(bucket_url, tmp_path / "staging").open()
    assert blobs.put(DATA) == blobs.put(DATA) and blobs.get(digest_of(DATA)) == DATA
    identity, is_new = blobs.folder_id()
    assert is_new and blobs.folder_id() == (identity, False)
