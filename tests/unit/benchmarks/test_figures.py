"""The comparison of measured figures with stored ones."""

from pathlib import Path

import pytest

import figures


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([13.5, 14.0, 15.0], "slower"),
        # One repeat was as fast as a stored one.
        ([12.0, 14.0, 15.0], "same"),
        # Apart, but by less than the least change.
        ([12.1, 12.09, 12.1], "same"),
        ([10.5, 11.0, 11.5], "same"),
        ([6.0, 7.0, 9.9], "faster"),
        ([6.0, 7.0, 10.0], "same"),
    ],
)
def test_a_figure_changes_only_if_its_repeats_lie_apart_from_the_stored_ones(
    measured: list[float], expected: str
) -> None:
    assert figures.change([10.0, 11.0, 12.0], measured) == expected


def test_a_clear_but_small_change_is_not_reported() -> None:
    assert figures.change([100.0, 100.1, 100.2], [109.0, 109.1, 109.2]) == "same"
    assert figures.change([100.0, 100.1, 100.2], [111.0, 111.1, 111.2]) == "slower"


def test_only_stored_figures_can_get_slower() -> None:
    stored = {"a": [1.0, 1.1], "b": [1.0, 1.1]}
    assert figures.slower(stored, {"a": [2.0, 2.1], "b": [1.0, 1.2], "new": [9.0, 9.1]}) == ["a"]


def test_the_report_names_every_figure_and_what_is_missing() -> None:
    lines = figures.report({"a": [1.0, 1.2], "gone": [3.0]}, {"a": [2.0, 2.2], "new": [5.0]})
    assert lines == [
        "a       2.10 (2.00–2.20)   stored    1.10 (1.00–1.20)   slower",
        "new     5.00 (5.00–5.00)   not stored",
        "stored, but not measured: gone",
    ]


def test_saved_figures_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert figures.load(path) == {}
    figures.save(path, {"a": [1.23456, 1234.5]})
    assert figures.load(path) == {"a": [1.23, 1230.0]}


def test_the_stored_figures_of_the_repository_are_repeats_of_ratios() -> None:
    stored = figures.load(Path(figures.__file__).with_name("figures.json"))
    assert stored
    for values in stored.values():
        assert len(values) >= 5
        assert min(values) > 0
