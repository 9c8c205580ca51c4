"""Opening and upgrading a store, on SQLite and on PostgreSQL."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from qidpfl_server.errors import DamagedState
from qidpfl_server.service.rounds.settlement import settle_if_due
from qidpfl_server.service.views import round_result
from qidpfl_server.store.database import migrate, newest_version, open_engine
from qidpfl_server.store.migrating import head
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.messages import RoundState, TaskState
from support.store_rows import NOW, Open, at_once, delivered_round, task_of


def test_a_store_that_is_opened_again_has_everything(opened: Open) -> None:
    store = opened()
    task_id, _ = delivered_round(store)
    before = everything(store, task_id)
    assert before == everything(opened(), task_id)
    assert settle_if_due(store, task_id, None, NOW)
    after = everything(store, task_id)
    assert after != before and after == everything(opened(), task_id)


def test_several_may_open_an_empty_store_at_the_same_time(store_url: str) -> None:
    engines = [open_engine(store_url) for _ in range(4)]
    if store_url.startswith("sqlite"):
        # The file is made by the first: `serve` is alone on it.
        migrate(engines[0])
    at_once(engines, migrate)
    for engine in engines:
        engine.dispose()


def test_a_store_of_a_newer_program_is_refused_and_left_alone(store: Store, store_url: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    engine = open_engine(store_url)
    with pytest.raises(DamagedState) as refusal:
        migrate(engine)
    assert "from_the_future" in str(refusal.value) and str(engine.url.database) in str(refusal.value)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "from_the_future"
    engine.dispose()


LATER_TABLES = (
    *("blob_folder", "escrow_settlements", "client_credentials", "operator_tokens", "small_blobs", "blob_removals"),
    *("chain", "chain_heads", "signing_keys", "tombstones"),
)
# Of migration 0005.
LATER_COLUMNS = (
    *(("clients", column) for column in ("revoked_at", "exclusions", "excluded_until")),
    *(("updates", column) for column in ("alignment", "voided_at")),
    ("invitations", "rho_limit"),
    ("budgets", "attempt"),
    ("payments", "escrow_micro"),
    *(("tasks", column) for column in ("paused_at", "declare_s", "deliver_s")),
    ("enrolment_codes", "revoked_at"),
    ("events", "fields"),
    *(("rounds", column) for column in ("evaluation_deferred", "evaluated_at")),
    *(("rounds", column) for column in ("paid_micro", "escrow_micro", "invited", "updates")),
)


def test_the_newest_version_is_that_of_the_migrations() -> None:
    """Catches a migration whose name does not have its number: the store would never be seen as current."""
    assert newest_version() == head()


def test_a_current_store_is_opened_without_alembic(store: Store, store_url: str) -> None:
    """Catches a start that always imports Alembic, which takes as long as the rest of the store."""
    program = f"""
import sys
from qidpfl_server.store.database import migrate, open_engine
migrate(open_engine({store_url!r}))
sys.exit("alembic" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


TIMINGS: dict[str, Any] = {"opened_at": None, "settlement_s": None, "evaluation_s": None}


def test_a_store_from_before_rounds_were_timed_goes_on(opened: Open, store_url: str) -> None:
    store = opened()
    task_id, _ = delivered_round(store)
    assert settle_if_due(store, task_id, None, NOW)
    before = store.read(lambda tx: tx.rounds.of_task(task_id))
    with store.engine.begin() as connection:
        for column in TIMINGS:
            connection.execute(text(f"ALTER TABLE rounds DROP COLUMN {column}"))
        connection.execute(text("ALTER TABLE clients DROP COLUMN token_used"))
        for table in LATER_TABLES:
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text("DROP INDEX ix_rounds_awaiting_evaluation"))
        for table, column in LATER_COLUMNS:
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    upgraded = opened()
    assert upgraded.read(lambda tx: tx.rounds.of_task(task_id)) == [
        replace(round_, **TIMINGS, sums=None) for round_ in before
    ]
    shown = upgraded.read(lambda tx: round_result(tx, task_of(upgraded, task_id), 1))
    assert shown.state is RoundState.SETTLED and shown.timing is None
    assert {entry.kind for entry in upgraded.read(lambda tx: list(tx.chain.entries(task_id)))} == {"adopted"}
    assert settle_if_due(upgraded, task_id, None, NOW, stop=True)
    assert task_of(upgraded, task_id).state is TaskState.STOPPED


def everything(store: Store, task_id: str) -> list[Any]:
    def read(tx: Transaction) -> list[Any]:
        rounds = tx.rounds.of_task(task_id)
        numbers = [round_.round_number for round_ in rounds]
        return [
            tx.tasks.all(),
            tx.tasks.models(task_id),
            tx.clients.of_task(task_id),
            rounds,
            [tx.rounds.invitations(task_id, number) for number in numbers],
            [tx.rounds.budgets(task_id, number) for number in numbers],
            [tx.rounds.updates(task_id, number) for number in numbers],
            [tx.payments.of_round(task_id, number) for number in numbers],
            tx.events.after(task_id, 0),
            tx.change_counter(),
        ]

    return store.read(read)
