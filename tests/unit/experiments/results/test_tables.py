"""Tables are read from CSV files as they were written."""

from dataclasses import replace
from pathlib import Path

import pytest

from qidpfl_experiments.results.tables import DamagedResults, Tables, read_tables, write_tables
from support.synthetic_results import results


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    tables = results(methods=("fedavg", "qi-dpfl"), seeds=2)
    write_tables(tmp_path, tables)
    assert read_tables(tmp_path) == tables


def test_unknown_values_and_special_characters_survive(tmp_path: Path) -> None:
    tables = results(methods=("fedavg",), partitions=("iid",), seeds=1)
    odd = replace(tables.cells[0], state="failed", reason='a "quoted",\nbroken line; ε', accuracy=None, cost=None)
    write_tables(tmp_path, replace(tables, cells=(odd,)))
    (read,) = read_tables(tmp_path).cells
    assert read == odd
    assert read.accuracy is None


def test_the_selection_of_a_client_is_read_as_a_boolean(tmp_path: Path) -> None:
    tables = results(methods=("qi-dpfl",), partitions=("dirichlet",), seeds=1)
    write_tables(tmp_path, tables)
    assert [row.selected for row in read_tables(tmp_path).clients].count(False) == 4


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-17, 1 / 3, float("inf")])
def test_numbers_keep_all_digits(tmp_path: Path, value: float) -> None:
    tables = results(methods=("qi-dpfl",), partitions=("iid",), seeds=1)
    write_tables(tmp_path, replace(tables, cells=(replace(tables.cells[0], cost=value),)))
    assert read_tables(tmp_path).cells[0].cost == value


def test_a_missing_file_is_an_empty_table(tmp_path: Path) -> None:
    assert read_tables(tmp_path) == Tables()


@pytest.mark.parametrize(
    ("old", "new"),
    [("finished", "finished,extra"), ("accuracy", "acuracy"), ("proven", "sworn"), (",10,", ",ten,")],
)
def test_a_damaged_table_is_reported_in_one_line(tmp_path: Path, old: str, new: str) -> None:
    write_tables(tmp_path, results(methods=("qi-dpfl",), partitions=("iid",), seeds=1))
    table = tmp_path / "cells.csv"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(DamagedResults, match=r"cells\.csv is damaged: ") as told:
        read_tables(tmp_path)
    assert "\n" not in str(told.value)
