"""`serve --preset` with an enrolment code of the operator, which is the same for all coordinators."""

from pathlib import Path

import pytest

from qidpfl_server.cli.serve import ensure_task
from qidpfl_server.errors import CoordinatorError
from qidpfl_server.ops.tokens import create_shared_code, read_shared_code
from qidpfl_server.service import tasks
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.use_cases import UseCases

SPEC = tasks.task_spec("digits", {})


def ensured(store: Store, name: str, code: str) -> bool:
    return ensure_task(store, name=name, preset_name="digits", spec=SPEC, write_down=pytest.fail, code=code)


@pytest.fixture
def code(tmp_path: Path) -> str:
    assert create_shared_code(tmp_path / "a.code")
    return read_shared_code(tmp_path / "a.code")


def test_the_code_names_the_task(cases: UseCases, code: str) -> None:
    assert ensured(cases.store, "mine", code) and not ensured(cases.store, "mine", code)
    found = cases.read(lambda tx: tx.tasks.by_name("mine"))
    assert found is not None and code.startswith(f"{found.task_id}.")


def test_a_code_of_another_task_is_refused(cases: UseCases, code: str) -> None:
    ensured(cases.store, "mine", code)
    with pytest.raises(CoordinatorError, match="that of task mine"):
        ensured(cases.store, "other", code)


def test_a_coordinator_that_another_one_has_overtaken_starts(
    cases: UseCases, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found no task, and the second one violates a key of the table."""
    write, overtaken = cases.store.write, []

    def late(work: object) -> object:
        monkeypatch.undo()
        overtaken.append(ensured(cases.store, "mine", code))
        # As in a transaction that began before the other one was committed.
        monkeypatch.setattr("qidpfl_server.store.repositories.tasks.TaskRows.by_name", lambda *_: None)
        monkeypatch.setattr("qidpfl_server.store.repositories.tasks.TaskRows.get", lambda *_: None)

        def then_visible(tx: Transaction) -> object:
            try:
                return work(tx)  # type: ignore[operator]
            finally:
                monkeypatch.undo()

        return write(then_visible)

    monkeypatch.setattr(cases.store, "write", late)
    assert ensured(cases.store, "mine", code) is False
    assert overtaken == [True]


@pytest.mark.parametrize("text", ["", "digits1.s3cret", "no code", "0" * 24])
def test_a_file_without_a_code_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.code").write_text(text)
    with pytest.raises(CoordinatorError, match=r"a\.code does not hold an enrolment code"):
        read_shared_code(tmp_path / "a.code")
