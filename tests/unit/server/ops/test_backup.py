"""Backups: complete and durable, by links or copies, and never into a folder that has files."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from qidpfl_server.audit import audit
from qidpfl_server.errors import CoordinatorError
from qidpfl_server.ops.backup import Backup, back_up
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.ops.tokens import load_secrets
from qidpfl_server.settings import Settings
from support.use_cases import UseCases

pytestmark = pytest.mark.slow


@pytest.fixture
def played(cases: UseCases, settings: Settings) -> UseCases:
    """A store with a settled round, its tokens and an enrolment code."""
    task, clients = cases.training(game={"horizon": 1})
    task.play(clients)
    load_secrets(settings)
    (settings.state_dir / "mine.code").write_text("the code\n")
    return cases


def backed_up(cases: UseCases, settings: Settings, folder: Path, *, copy: bool = False) -> Backup:
    return back_up(settings, cases.store, folder, copy=copy, watch=lambda digests: digests)


def blobs_in(folder: Path) -> list[Path]:
    return sorted((folder / "blobs" / "objects").iterdir())


@pytest.mark.parametrize("copy", [False, True])
def test_a_backup_holds_database_secrets_and_every_blob_as_a_link_or_a_copy(
    played: UseCases, settings: Settings, tmp_path: Path, copy: bool
) -> None:
    folder = tmp_path / "copies" / "one"
    made = backed_up(played, settings, folder, copy=copy)
    # The first model, the second with its momentum, and three updates.
    assert made == Backup(folder=folder, database=True, blobs=6, missing=0, secrets=3)
    assert len(blobs_in(folder)) == 6
    assert {blob.stat().st_nlink > 1 for blob in blobs_in(folder)} == {not copy}
    names = {"coordinator.db", "blobs", "admin.token", "viewer.token", "mine.code"}
    assert {path.name for path in folder.iterdir()} == names
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.token")} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    with opened_store(Settings(state_dir=folder)) as store:
        assert audit(store).violations == []


def test_a_backup_never_goes_into_a_folder_with_files(played: UseCases, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CoordinatorError, match="exists and is not an empty folder: name a new one"):
        backed_up(played, settings, folder)
    assert os.listdir(folder) == ["notes.txt"]


def test_a_backup_counts_missing_blobs_and_the_audit_names_them(
    played: UseCases, settings: Settings, tmp_path: Path
) -> None:
    lost = blobs_in(tmp_path)[0]
    lost.unlink()
    made = backed_up(played, settings, tmp_path / "copy")
    assert (made.blobs, made.missing) == (5, 1)
    with opened_store(Settings(state_dir=tmp_path / "copy")) as store:
        assert any(lost.name in violation for violation in audit(store).violations)


def test_an_interrupted_backup_leaves_nothing(played: UseCases, settings: Settings, tmp_path: Path) -> None:
    def interrupted(digests: list[str]) -> Iterable[str]:
        yield digests[0]
        raise KeyboardInterrupt

    before = set(os.listdir(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        back_up(settings, played.store, tmp_path / "copy", watch=interrupted)
    assert set(os.listdir(tmp_path)) == before
