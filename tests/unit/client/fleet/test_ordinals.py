"""The members that one process of a fleet plays."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from qidpfl_client.cli.app import app
from qidpfl_client.errors import Misconfigured
from qidpfl_client.fleet.ordinals import fleet_range
from qidpfl_client.fleet.plan import FleetPlan
from qidpfl_client.owner import Owner


@pytest.mark.parametrize(
    ("clients", "ordinals", "found"),
    [
        (5, None, (5, range(5))),
        (None, "2-4", (5, range(2, 5))),
        (None, "7", (8, range(7, 8))),
        (100, "25-49", (100, range(25, 50))),
        (100, " 0-99 ", (100, range(100))),
    ],
)
def test_a_range_includes_both_of_its_ends(clients: int | None, ordinals: str | None, found: tuple[int, range]) -> None:
    assert fleet_range(clients, ordinals, has_shares=False) == found


@pytest.mark.parametrize(
    ("clients", "ordinals", "message"),
    [
        (None, None, "give --clients, the number of members, or --ordinals A-B"),
        (None, "9-3", "--ordinals 9-3 ends before it begins"),
        (10, "5-10", "there is no ordinal 10 among 10 clients: they are numbered from 0 to 9"),
        (None, "0-100000", "there is no ordinal 100000 among 100000 clients"),
        *(
            (None, text, "--ordinals is a range such as 0-24")
            for text in ("", "a-b", "-3", "1-", "1-2-3", "1.5", "٣-٤")
        ),
    ],
)
def test_an_impossible_range_is_one_line(clients: int | None, ordinals: str | None, message: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        fleet_range(clients, ordinals, has_shares=False)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_shares_of_behaviours_need_the_size_of_the_whole_fleet() -> None:
    with pytest.raises(Misconfigured, match="shares of behaviours need --clients"):
        fleet_range(None, "0-4", has_shares=True)
    assert fleet_range(10, "0-4", has_shares=True) == (10, range(5))


def test_the_command_says_in_one_line_what_is_wrong() -> None:
    given = ["fleet", "--server", "http://127.0.0.1:1", "--code", "x.y", "--ordinals", "4-2"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1
    assert done.stderr == (
        "qidpfl-client: --ordinals 4-2 ends before it begins: the first ordinal is the smaller one\n"
    )


def test_parts_in_one_folder_have_journals_and_logs_of_their_own(tmp_path: Path) -> None:
    def plan(ordinals: range | None) -> FleetPlan:
        return FleetPlan(
            clients=4,
            ordinals=ordinals,
            codes=("task.code",),
            owner=Owner(privacy_value=1.0),
            journals=tmp_path,
            privacy_value="1.0",
            shares={},
        )

    (tmp_path / "ordinals-0-1").mkdir()
    (tmp_path / "ordinals-0-1" / "client-00001.sqlite").touch()
    assert plan(range(2)).has_enrolled
    assert not plan(range(2, 4)).has_enrolled and not plan(None).has_enrolled
    assert plan(range(2, 4)).played == range(2, 4) and plan(None).played == range(4)
