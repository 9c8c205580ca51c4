"""`serve --preset`: its task is created once, and its enrolment code survives a crash and a second server."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qidpfl_server.cli import app as commands
from qidpfl_server.cli.serve import ensure_task
from qidpfl_server.cli.task_options import Wanted
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.ops.tokens import create_private
from qidpfl_server.service.tasks import task_spec
from qidpfl_server.settings import Settings

SPEC = task_spec("digits", {})


def ensured(settings: Settings, folder: Path) -> list[str]:
    """Make the task `mine`; the files of codes there are then, the first of which has to open it."""
    with opened_store(settings, create=True) as store:
        commands._ensure(settings, store, "mine", Wanted(preset="digits", overrides={}), (SPEC, None))
        for code in (folder / "mine.code").read_text().split():
            found = store.read(lambda tx, code=code: tx.tasks.task_of_code(hash_secret(code)))  # type: ignore[misc]
            assert found == code.split(".")[0]
    return sorted(path.name for path in folder.iterdir() if "code" in path.name)


def test_a_second_coordinator_keeps_the_code_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(state_dir=tmp_path)
    others: list[list[str]] = []

    def overtaken(path: Path, code: str) -> bool:
        monkeypatch.undo()
        others.append(ensured(settings, tmp_path))
        return create_private(path, code)

    monkeypatch.setattr(commands, "create_private", overtaken)
    assert ensured(settings, tmp_path) == ["mine.code"]
    assert others == [["mine.code"]]


def test_a_code_written_before_a_crash_is_used_again(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    ensured(settings, tmp_path)
    (tmp_path / "mine.code").rename(tmp_path / "mine.code~1")
    (tmp_path / "mine.code~2").write_text("task.of-a-task-that-was-never-made\n")
    (tmp_path / "mine.code.code").write_text("of another task\n")
    assert ensured(settings, tmp_path) == ["mine.code", "mine.code.code"]


def test_a_task_of_this_name_with_another_spec_stays_and_is_logged(tmp_path: Path) -> None:
    other = task_spec("digits", {"game": {"horizon": 3}})
    settings = Settings(state_dir=tmp_path)
    ensured(settings, tmp_path)
    with opened_store(settings) as store:
        for spec, said in ((SPEC, []), (other, ["task_differs"])):
            with capture_logs() as logs:
                assert not ensure_task(store, name="mine", preset_name="digits", spec=spec, write_down=pytest.fail)
            assert [line["event"] for line in logs] == said


def test_a_task_of_an_earlier_release_is_the_same_task(tmp_path: Path) -> None:
    old = SPEC.model_copy(update={"protocol_version": None, "requires": None})
    with opened_store(Settings(state_dir=tmp_path), create=True) as store:
        assert ensure_task(store, name="mine", preset_name="digits", spec=old, write_down=lambda _: None)
        with capture_logs() as logs:
            assert not ensure_task(store, name="mine", preset_name="digits", spec=SPEC, write_down=pytest.fail)
    assert logs == []
