"""The rounds of the demo on a terminal of 80 columns."""

import pytest
from rich.console import Console

from qidpfl import Task
from qidpfl.demo.watch import rounds_table
from qidpfl.record import TaskRecord
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import ClientResult, ClientSummary, RoundResult, RoundState, TaskState, TaskView


def record(clients: int) -> TaskRecord:
    names = [f"{number:024x}" for number in range(clients)]
    spec = Task.from_preset("digits").spec
    view = TaskView(
        task_id="a",
        name="digits",
        preset="digits",
        state=TaskState.TRAINING,
        settled_rounds=1,
        horizon=20,
        clients=clients,
        paid_micro=0,
        spec=spec,
        spec_digest=spec.digest,
    )
    summaries = [
        ClientSummary(client_id=name, ordinal=number, state="selected", size=120, privacy_value=1.0)
        for number, name in enumerate(names)
    ]
    parts = tuple(
        ClientResult(
            client_id=name,
            ordinal=number,
            standing=Standing.INVITED,
            rho=0.0712,
            declined=False,
            delivered=True,
            accepted=True,
            payment_micro=1_000_000,
        )
        for number, name in enumerate(names)
    )
    result = RoundResult(
        round_number=1,
        attempt=1,
        state=RoundState.SETTLED,
        reward_micro=27_150_000,
        paid_micro=27_150_000,
        kept_micro=0,
        total=1.0,
        updates=clients,
        model_version=1,
        accuracy=0.817,
        clients=parts,
    )
    return TaskRecord(view, summaries, [result])


def lines(clients: int, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(rounds_table(record(clients), width=width))
    return captured.get().splitlines()


@pytest.mark.parametrize("clients", [2, 7, 10, 100])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_header_and_no_digit_is_cut(clients: int, width: int) -> None:
    *_, head, row = (line.split() for line in lines(clients, width))
    shown = len(head) - 5
    assert head[:2] + head[-3:] == ["round", "reward", "paid", "accuracy", "epsilon"]
    assert head[2:-3] == [f"#{number}" for number in range(shown)]
    assert row[:2] + row[-3:-1] == ["1", "27.15", "27.15", "0.817"]
    assert row[2:-3] == [".0712"] * shown


def test_what_does_not_fit_is_counted() -> None:
    assert len(lines(7, 80)) == 3
    assert "(3 more clients do not fit; the dashboard has them)" in "".join(lines(10, 80))
