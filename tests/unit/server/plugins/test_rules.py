"""Files of rules: what is loaded, what is refused in one line, and what a task may name."""

from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.errors import CoordinatorError, RequestRefused
from qidpfl_server.plugins.rules import NO_RULES, load_rules
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

REWARD = "def reward(question):\n    return 1.0\n"
SELECT = "def select(question):\n    return [True] * question.clients\n"


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def task(*, policy: str | None = None, rule: str | None = None) -> TaskSpec:
    overrides: dict[str, Any] = {}
    if policy is not None:
        overrides["game"] = {"policy": "own", "own_rules": policy}
    if rule is not None:
        overrides["selection"] = {"rule": "own", "own_rules": rule}
    return preset("digits", overrides)


def test_a_task_finds_the_functions_of_the_files_that_it_names(tmp_path: Path) -> None:
    rules = load_rules([file(tmp_path, "paying.py", REWARD), file(tmp_path, "choosing.py", SELECT)])
    spec = task(policy="paying", rule="choosing")
    reward, select = rules.reward(spec), rules.select(spec)
    assert rules.missing(spec) == {}
    assert reward is not None and select is not None
    assert (reward.__name__, select.__name__) == ("reward", "select")


def test_a_task_without_custom_rules_needs_none() -> None:
    NO_RULES.require(task())
    assert NO_RULES.reward(task()) is None and NO_RULES.select(task()) is None


def test_missing_rules_are_refused_with_the_name_of_their_file() -> None:
    with pytest.raises(RequestRefused, match=r"--rules paying\.py is needed") as refusal:
        NO_RULES.require(task(policy="paying"))
    assert refusal.value.code is ErrorCode.RULES_NOT_LOADED


def test_a_file_without_the_function_that_is_needed_is_refused(tmp_path: Path) -> None:
    rules = load_rules([file(tmp_path, "paying.py", REWARD)])
    rules.require(task(policy="paying"))
    with pytest.raises(RequestRefused, match=r"paying\.py has no function select"):
        rules.require(task(rule="paying"))


def test_two_registries_do_not_share_their_rules(tmp_path: Path) -> None:
    paying = load_rules([file(tmp_path, "paying.py", REWARD)])
    choosing = load_rules([file(tmp_path, "choosing.py", SELECT)])
    assert choosing.missing(task(policy="paying")) and not choosing.missing(task(rule="choosing"))
    assert not paying.missing(task(policy="paying")) and paying.missing(task(rule="choosing"))


def test_a_file_may_be_named_twice_but_two_files_need_two_names(tmp_path: Path) -> None:
    one, other = file(tmp_path / "a", "paying.py", REWARD), file(tmp_path / "b", "paying.py", REWARD)
    rules = load_rules([one, one])
    with pytest.raises(CoordinatorError, match="have the same name"):
        load_rules([one, other])
    assert not rules.missing(task(policy="paying"))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("broken.py", "def reward(:\n", "cannot be imported: SyntaxError"),
        ("failing.py", "1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("empty.py", "", "has neither a function reward nor a function select"),
        ("number.py", "reward = 5\n", "reward is not a function"),
        ("two words.py", REWARD, "no task can use this name"),
        ("rules.txt", REWARD, "must end in .py"),
    ],
)
def test_a_file_without_rules_is_refused_in_one_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    with pytest.raises(CoordinatorError) as refusal:
        load_rules([file(tmp_path, name, text)])
    assert line in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorError, match="there is no file"):
        load_rules([tmp_path / "nowhere.py"])
