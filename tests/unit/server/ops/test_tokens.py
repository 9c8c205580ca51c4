"""The tokens of the operator: created once, readable by the operator only, never replaced."""

import os
from pathlib import Path

import pytest

from qidpfl_server.errors import DamagedState
from qidpfl_server.ops.tokens import create_private, load_secrets
from qidpfl_server.settings import Settings

pytestmark = pytest.mark.slow


def test_tokens_are_created_once_and_only_the_operator_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    first, second = load_secrets(Settings(state_dir=folder)), load_secrets(Settings(state_dir=folder))
    assert {path.name for path in first.created} == {"admin.token", "viewer.token"}
    assert second.created == () and (first.admin, first.viewer) == (second.admin, second.viewer)
    assert first.admin != first.viewer
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", "\n", "too-short"])
def test_a_file_without_a_token_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "admin.token").write_text(text)
    with pytest.raises(DamagedState, match=r"admin\.token does not hold a token"):
        load_secrets(Settings(state_dir=tmp_path))


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    assert create_private(tmp_path / "mine.code", "first")
    assert not create_private(tmp_path / "mine.code", "second")
    assert (tmp_path / "mine.code").read_text() == "first\n"


def test_one_of_two_processes_creates_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def overtaken(partial: Path, path: Path) -> None:
        monkeypatch.undo()
        path.write_text("of the other process\n")
        link(partial, path)

    monkeypatch.setattr(os, "link", overtaken)
    assert not create_private(tmp_path / "mine.code", "mine")
    assert (tmp_path / "mine.code").read_text() == "of the other process\n"
    assert os.listdir(tmp_path) == ["mine.code"]


def test_a_file_system_without_links_gets_the_file_by_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*_: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", impossible)
    assert create_private(tmp_path / "mine.code", "mine")
    assert os.listdir(tmp_path) == ["mine.code"]


def test_an_error_while_writing_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the disk is full"):
        load_secrets(Settings(state_dir=tmp_path))
    assert os.listdir(tmp_path) == []
