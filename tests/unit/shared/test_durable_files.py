"""Durable files: complete under their names, or not there."""

import os
import stat
from pathlib import Path

import pytest

from qidpfl_shared import durable_files
from qidpfl_shared.durable_files import create_folder, write_durably, write_synced


@pytest.mark.parametrize("data", ["text é", b"\x00bytes"])
def test_a_file_is_created_and_then_replaced(tmp_path: Path, data: str | bytes) -> None:
    path = tmp_path / "file"
    write_durably(path, "before")
    write_durably(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_keeps_the_old_content_and_leaves_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_durably(path, "before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_are_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    replace = os.replace

    def renamed(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: steps.append("bytes"))
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(durable_files, "fsync_dir", lambda folder: steps.append(f"folder {folder.name}"))
    write_durably(tmp_path / "file", "text")
    assert steps == ["bytes", "rename", f"folder {tmp_path.name}"]


def test_an_exclusive_file_is_never_replaced_and_has_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_synced(path, b"first", exclusive=True, mode=0o600)
    with pytest.raises(FileExistsError):
        write_synced(path, b"second", exclusive=True, mode=0o600)
    assert path.read_bytes() == b"first" and path.stat().st_mode & 0o777 == 0o600


def test_a_new_folder_is_fsynced_in_each_new_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    create_folder(tmp_path / "a" / "b" / "c", mode=0o700)
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700
    create_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        create_folder(tmp_path / "file" / "folder")
