"""The option of the seeds: how many, or which."""

import pytest

from qidpfl_experiments.run.options import seeds_in
from qidpfl_experiments.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1", (0,)), ("3", (0, 1, 2)), ("3,5", (3, 5)), ("4-6", (4, 5, 6)), ("7-7", (7,)), ("1, 3-4,3", (1, 3, 4))],
)
def test_a_number_is_how_many_and_a_list_or_a_range_names_them(text: str, seeds: tuple[int, ...]) -> None:
    assert seeds_in(text) == seeds


@pytest.mark.parametrize(
    "text", ["0", "-1", "", ",", "two", "3-", "6-4", "1001", "1.5", "0-99999999", "1000000-1000000"]
)
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(SettingsError, match=r"seeds|empty"):
        seeds_in(text)
