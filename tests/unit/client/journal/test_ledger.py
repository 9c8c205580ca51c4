"""The ledger adds up, and claims only what is proven."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qidpfl_client.journal.journal import Entry, Journal, Membership
from qidpfl_client.journal.ledger import as_json, limit_lines, lines, read_ledger
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.presets import preset

SPEC = preset("digits", {"privacy": {"delta": 1e-6}})


def entry(release: str, state: SpendState, *, rho: float = 0.1, proven: float | None = None, paid: int = 0) -> Entry:
    return Entry(
        task_id="t",
        release=release,
        mechanism="gradient_once",
        rho=rho,
        proven_rho=rho if proven is None else proven,
        state=state,
        payment_micro=paid or None,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as opened:
        opened.save_membership(
            Membership(
                task_id="t",
                server="http://x",
                enrolment_key="k",
                spec=SPEC.model_dump_json(),
                spec_digest=SPEC.digest,
                lifetime_rho=0.5,
            )
        )
        opened.limits.keep_first(0.5)
        opened.limits.raise_to(1.0)
        for item in (
            entry("histogram", SpendState.SPENT),
            replace(entry("round/1", SpendState.SPENT, paid=700), training_s=1.25),
            entry("round/2", SpendState.SPENT_UNPAID),
            entry("round/3", SpendState.RESERVED, paid=0),
        ):
            opened.reserve(item, account=opened.account())
        opened.reserve(entry("round/4", SpendState.RESERVED), account=opened.account())
        opened.free("t", "round/4")
    # Read-only, as the command does.
    with Journal(tmp_path / "journal", read_only=True) as opened:
        yield opened


def test_spent_reserved_and_left_add_up(journal: Journal) -> None:
    ledger = read_ledger(journal)
    assert ledger.spent_rho == pytest.approx(0.3)
    assert ledger.reserved_rho == pytest.approx(0.1)
    assert ledger.remaining_rho == pytest.approx(0.6)
    assert (ledger.earned_micro, ledger.lifetime_rho, ledger.delta) == (700, 1.0, 1e-6)
    assert ledger.epsilon == epsilon_from_rho(rho=ledger.spent_rho, delta=1e-6)
    assert "0.3-zCDP" in ledger.statement and "1e-06" in ledger.statement
    assert [row[1:4] for row in lines(ledger)][2] == ("round/2", "gradient_once", "spent_unpaid")


def test_json_has_the_same_numbers(journal: Journal) -> None:
    ledger = read_ledger(journal, delta=1e-3)
    body = json.loads(as_json(ledger))
    assert [item["state"] for item in body["entries"]] == ["spent", "spent", "spent_unpaid", "reserved", "freed"]
    assert body["spent_rho"] == ledger.spent_rho and body["epsilon"] == ledger.epsilon and body["delta"] == 1e-3
    assert body["earned_micro"] == 700 and body["entries"][1]["payment_micro"] == 700
    assert [item["training_s"] for item in body["entries"]] == [None, 1.25, None, None, None]
    assert [limit["lifetime_rho"] for limit in body["limits"]] == [0.5, 1.0] and body["lifetime_rho"] == 1.0
    assert "token" not in as_json(ledger) and "enrolment_key" not in as_json(ledger)


def test_the_history_of_the_limit_is_shown_in_words(journal: Journal) -> None:
    first, second = limit_lines(read_ledger(journal, delta=1e-5))
    assert "rho 0.5, epsilon 4.7 at delta 1e-05: all releases together" in first and "rho 1, epsilon" in second


def test_one_unprotected_release_removes_the_guarantee(tmp_path: Path) -> None:
    with Journal(tmp_path / "unprotected") as journal:
        account = journal.account(accept_unproven=True)
        journal.reserve(entry("round/1", SpendState.SPENT, proven=math.inf), account=account)
        ledger = read_ledger(journal)
        assert ledger.statement == "no privacy guarantee: at least one release is unprotected"
        body = json.loads(as_json(ledger))
        assert body["spent_rho"] is body["epsilon"] is body["remaining_rho"] is body["entries"][0]["proven_rho"] is None
        assert lines(ledger)[0][5] == "none"


def test_an_empty_journal_has_released_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "empty") as journal:
        ledger = read_ledger(journal)
    assert ledger.entries == () and ledger.spent_rho == 0 and ledger.earned_micro == 0 and ledger.epsilon == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_an_impossible_delta_is_refused(journal: Journal, delta: float) -> None:
    with pytest.raises(ImpossibleArgument):
        as_json(read_ledger(journal, delta=delta))
