"""Custom methods: one Python file each."""

from pathlib import Path

import pytest

from qidpfl_experiments.methods import CustomMethodError, Kept, Reward, Role, custom_method, custom_methods

REWARD = "def reward(question):\n    return 1.0\n"
SELECT = "def select(question):\n    return [True]\n"


def written(folder: Path, text: str, name: str = "generous.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "kept", "reward"),
    [
        (REWARD, Kept.THRESHOLD, Reward.CUSTOM),
        (SELECT, Kept.CUSTOM, Reward.OPTIMAL),
        (REWARD + SELECT, Kept.CUSTOM, Reward.CUSTOM),
    ],
)
def test_a_missing_function_is_that_of_qi_dpfl(tmp_path: Path, text: str, kept: Kept, reward: Reward) -> None:
    method = custom_method(written(tmp_path, f'"""Pays well.\n\nVery."""\n{text}'))
    assert (method.name, method.kept, method.reward, method.role) == ("generous", kept, reward, Role.CUSTOM)
    assert method.about == "Pays well."
    assert method.noise


def test_a_file_may_change_the_aggregation_alone(tmp_path: Path) -> None:
    method = custom_method(written(tmp_path, 'TASK = {"aggregation": {"weighting": "optimal"}}\n'))
    assert method.task == {"aggregation": {"weighting": "optimal"}}
    assert (method.kept, method.reward, method.has_rules) == (Kept.THRESHOLD, Reward.OPTIMAL, False)
    assert custom_method(written(tmp_path, REWARD)).has_rules


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("dict(aggregation={})", "literal dictionary"),
        ("{'aggregation': 1}", "literal dictionary"),
        ("[]", "literal dictionary"),
        ("{'privacy': {'noise': False}}", "may change aggregation and game only"),
    ],
)
def test_a_task_that_is_not_plain_or_changes_more_is_refused(tmp_path: Path, task: str, message: str) -> None:
    with pytest.raises(CustomMethodError, match=message):
        custom_method(written(tmp_path, f"TASK = {task}\n"))


def test_changed_rules_have_another_digest(tmp_path: Path) -> None:
    before = custom_method(written(tmp_path, REWARD))
    assert custom_method(written(tmp_path, REWARD.replace("1.0", "2.0"))).rules_digest != before.rules_digest


def test_the_file_is_not_run(tmp_path: Path) -> None:
    custom_method(written(tmp_path, f"raise SystemExit('run')\n{REWARD}"))


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 1", "a.py", "defines neither reward"),
        ("def reward(:", "a.py", "is not valid Python"),
        (REWARD, "max.py", "the name max is already used"),
        (REWARD, "QI-DPFL.py", "the name QI-DPFL is already used"),
        (REWARD, "calibration.py", "the name calibration is already used"),
        (REWARD, "all.py", "the name all is already used"),
        (REWARD, "rules.txt", "must end in .py"),
        (REWARD, "my rules.py", "cannot be the name"),
    ],
)
def test_an_unusable_file_gets_a_message_of_one_line(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(CustomMethodError, match=message):
        custom_method(written(tmp_path, text, name))


def test_two_files_cannot_have_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [written(tmp_path, REWARD), written(tmp_path / "other", SELECT, "Generous.py")]
    assert [method.name for method in custom_methods(paths[:1])] == ["generous"]
    with pytest.raises(CustomMethodError, match="two files have the name Generous: rename"):
        custom_methods(paths)
