"""`Task`: presets, changes by section and by field, and the number of clients."""

import pytest

from qidpfl import InvalidTask, Task

DIGITS = Task.from_preset("digits")


def test_a_preset_has_its_own_values_and_a_description() -> None:
    assert DIGITS.spec.game.horizon == 20
    assert "digits" in Task.presets() and Task.presets()["digits"].startswith("Scikit-learn's digits")


def test_a_field_of_one_section_needs_no_section() -> None:
    changed = DIGITS.with_(horizon=3, momentum=0.1, distance_threshold=1.5, target_accuracy=0.9)
    spec = changed.spec
    assert (spec.game.horizon, spec.aggregation.momentum, spec.selection.distance_threshold) == (3, 0.1, 1.5)
    assert spec.target_accuracy == 0.9
    assert DIGITS.spec.game.horizon == 20


def test_later_changes_are_merged_into_earlier_ones() -> None:
    changed = DIGITS.with_(game={"horizon": 3}).with_(game={"policy": "fixed", "fixed_reward_micro": 5_000_000})
    assert (changed.spec.game.horizon, changed.spec.game.policy) == (3, "fixed")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "game.horizon: "),
        ({"seed": 1}, "several sections have a field seed; write selection={'seed': …} or game={'seed': …}"),
        ({"hroizon": 1}, "a task has no field hroizon; its sections are workload"),
        ({"game": {"hroizon": 1}}, "game.hroizon: "),
        ({"game": 5}, "game: "),
    ],
)
def test_an_impossible_change_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        DIGITS.with_(**changes)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InvalidTask, match="unknown preset 'digit'; use one of digits, mnist"):
        Task.from_preset("digit")


@pytest.mark.parametrize(("clients", "two_class"), [(5, (2,)), (10, (2, 5, 8)), (25, (2, 5, 8, 12, 15, 18, 22))])
def test_a_task_grows_with_its_clients(clients: int, two_class: tuple[int, ...]) -> None:
    spec = DIGITS.for_clients(clients).spec
    assert spec.workload.partition is not None
    assert (spec.workload.partition.clients, spec.rounds.expected_clients) == (clients, clients)
    assert spec.workload.partition.two_class_ordinals == two_class


def test_too_few_clients_are_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidTask, match="needs at least 2 clients, not 1"):
        DIGITS.for_clients(1)
