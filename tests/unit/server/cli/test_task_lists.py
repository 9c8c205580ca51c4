"""Lists on a terminal of 80 columns: a table whose first column is folded, or one line per value."""

import pytest
from rich.console import Console

from qidpfl_server.cli.display.task_lists import print_table

HEADERS = ("name", "id", "state")


def printed(capsys: pytest.CaptureFixture[str], *row: str, width: int = 80) -> list[str]:
    print_table(Console(width=width, color_system=None), HEADERS[: len(row)], [row])
    return capsys.readouterr().out.splitlines()


def test_a_long_name_is_folded_and_the_rest_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "n" * 60, "5f1d7a84db00d2fce00b31a7", "finished")
    assert lines[1].split() == ["n" * 42, "5f1d7a84db00d2fce00b31a7", "finished"]
    assert lines[2].strip() == "n" * 18


def test_columns_that_do_not_fit_become_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "a-long-name", "5f1d7a84db00d2fce00b31a7", "valid until 2026-11-27 21:20", width=60)
    assert lines == ["name   a-long-name", "id     5f1d7a84db00d2fce00b31a7", "state  valid until 2026-11-27 21:20"]
