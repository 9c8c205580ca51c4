"""A batch of requests gets the same answers as the requests one after the other, on both stores."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.clock import SECOND
from qidpfl_server.domain import BudgetState
from qidpfl_server.errors import RequestRefused
from qidpfl_server.service.enrolment import enrol, store_profile
from qidpfl_server.service.rounds.submissions import (
    BudgetAnswer,
    Delivery,
    StagedDelivery,
    accept_updates,
    declare_budgets,
    find_receipts,
)
from qidpfl_server.service.tasks import create_task, new_codes, save_initial_model, task_spec
from qidpfl_server.store.blobs import FolderBlobs, StagedBlob
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.messages import (
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    EnrolRequest,
    Profile,
    UpdateReceipt,
)

NOW = 1_800_000_000 * SECOND
TASK = "5ea7"
SPEC = task_spec("digits", {"rounds": {"expected_clients": 3}})


class Stage:
    """A task of three clients in its first round."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.told: list[set[str]] = []
        codes = new_codes(TASK, SPEC, 0)
        model = save_initial_model(store.blobs, SPEC)
        store.write(
            lambda tx: create_task(
                tx,
                name="task",
                preset_name="digits",
                spec=SPEC,
                model=model,
                now=NOW,
                task_id=TASK,
                codes=codes,
                single_use_codes=0,
            )
        )
        self.clients = [self._join(codes[0], number) for number in range(3)]
        store.on_commit(self.told.append)

    def _join(self, code: str, number: int) -> str:
        request = EnrolRequest(enrolment_code=code, enrolment_key=f"the-key-of-client-{number}")
        client_id = self.store.write(lambda tx: enrol(tx, TASK, request, NOW)).client_id
        profile = Profile(label_counts=(11,) * 10, size=110, privacy_value=1.0, histogram_rho=0.1)
        self.store.write(lambda tx: store_profile(tx, client_id, profile, NOW))
        return client_id

    def declare(self, *answers: tuple[str, BudgetRequest], round_number: int = 1) -> list[BudgetReceipt | Exception]:
        group = [
            BudgetAnswer(client_id=client, request=request, at=NOW + n) for n, (client, request) in enumerate(answers)
        ]
        return self.store.write(lambda tx: declare_budgets(tx, TASK, round_number, group))

    def staged(self, client: str, data: bytes, at: int = NOW) -> StagedDelivery:
        blob = self.store.blobs.stage()
        blob.write(data)
        blob.sync()
        return StagedDelivery(client_id=client, digest=blob.digest, at=at, blob=blob, squared_norm=1.0)

    def deliver(self, *deliveries: StagedDelivery) -> list[UpdateReceipt | Exception]:
        return self.store.write(lambda tx: accept_updates(tx, TASK, 1, deliveries))

    def look_up(self, *deliveries: Delivery) -> list[UpdateReceipt | Exception | None]:
        return self.store.read(lambda tx: find_receipts(tx, TASK, 1, deliveries))

    def recorded(self) -> dict[str, str]:
        updates = self.store.read(lambda tx: tx.rounds.updates(TASK, 1))
        return {client: update.digest for client, update in updates.items()}


@pytest.fixture
def stage(store_url: str, tmp_path: Path) -> Iterator[Stage]:
    engine = open_engine(store_url)
    migrate(engine)
    store = Store(engine, FolderBlobs(tmp_path / "blobs"))
    yield Stage(store)
    store.close()


def test_equal_bytes_of_two_clients_in_one_batch_are_accepted_once(stage: Stage) -> None:
    first, second, _ = stage.clients
    stage.declare(*((client, Declaration(rho=0.05)) for client in stage.clients))
    outcomes = stage.deliver(stage.staged(first, b"same"), stage.staged(second, b"same"))
    assert said(outcomes) == ["receipt", "update_replayed"]
    assert list(stage.recorded()) == [first]


def test_two_uploads_of_a_client_in_one_batch_get_one_receipt_and_other_bytes_none(
    stage: Stage,
) -> None:
    client = stage.clients[0]
    stage.declare((client, Declaration(rho=0.05)))
    sent = [stage.staged(client, b"first", NOW + 1), stage.staged(client, b"first", NOW + 2)]
    outcomes = stage.deliver(*sent, stage.staged(client, b"other", NOW + 3))
    assert outcomes[0] == outcomes[1]
    assert said(outcomes) == ["receipt", "receipt", "update_exists"]
    assert stage.recorded() == {client: sent[0].digest}


def test_refused_uploads_do_not_affect_the_others_of_their_batch(stage: Stage) -> None:
    good, silent, gone = stage.clients
    stage.declare((good, Declaration(rho=0.05)), (gone, Declaration(rho=0.05)))
    broken = stage.staged(gone, b"gone")
    discard(broken.blob)
    late = stage.staged(gone, b"late", NOW + 10**12)
    group = [stage.staged(silent, b"silent"), broken, stage.staged(good, b"good"), late, stage.staged("nobody", b"x")]
    outcomes = stage.deliver(*group)
    assert said(outcomes) == ["budget_missing", "FileNotFoundError", "receipt", "round_closed", "not_invited"]
    assert stage.recorded() == {good: group[2].digest}
    assert stage.store.blobs.get(group[2].digest) == b"good"


def test_each_upload_of_a_batch_gets_its_own_answer_before_its_body(stage: Stage) -> None:
    known, new, silent = stage.clients
    stage.declare((known, Declaration(rho=0.05)), (new, Declaration(rho=0.05)))
    sent = stage.staged(known, b"known")
    receipt = stage.deliver(sent)[0]
    group = [announced(known, sent.digest), announced(new, "0" * 64), announced(new, sent.digest), announced(silent)]
    outcomes = stage.look_up(*group)
    assert outcomes[:2] == [receipt, None]
    assert said(outcomes[2:]) == ["update_replayed", "budget_missing"]


def test_a_declaration_and_its_decline_in_one_batch_leave_a_decline_with_the_rho(stage: Stage) -> None:
    changing, other, _ = stage.clients
    outcomes = stage.declare(
        (changing, Declaration(rho=0.05)),
        (other, Declaration(rho=0.04)),
        (changing, Decline(decline=True, reason="changed my mind")),
        (changing, Declaration(rho=0.05)),
        ("nobody", Declaration(rho=0.05)),
    )
    assert said(outcomes) == ["receipt", "receipt", "receipt", "budget_declared", "unauthenticated"]
    budgets = stage.store.read(lambda tx: tx.rounds.budgets(TASK, 1))
    assert (budgets[changing].state, budgets[changing].rho) == (BudgetState.DECLINED, 0.05)
    assert budgets[changing].recorded_at == NOW + 2
    assert budgets[other].state is BudgetState.DECLARED


def test_a_task_is_announced_only_by_the_batch_that_completes_its_round(stage: Stage) -> None:
    stage.declare(*((client, Declaration(rho=0.05)) for client in stage.clients))
    stage.deliver(*(stage.staged(client, client.encode()) for client in stage.clients[:2]))
    assert not any(stage.told)
    stage.deliver(stage.staged(stage.clients[2], b"last"))
    assert stage.told[-1] == {TASK}


def test_unwritten_and_unpublished_blobs_leave_nothing(stage: Stage, tmp_path: Path) -> None:
    with stage.store.blobs.stage():
        pass
    with stage.store.blobs.stage() as blob:
        blob.write(b"half")
    assert list((tmp_path / "blobs" / "staging").iterdir()) == []


def announced(client: str, digest: str = "f" * 64) -> Delivery:
    return Delivery(client_id=client, digest=digest, at=NOW)


def discard(blob: StagedBlob) -> None:
    """The remaining files of a staged blob whose sender has disconnected."""
    with blob:
        pass


def said(outcomes: Sequence[Any]) -> list[str]:
    """Each outcome as a word."""
    return [
        outcome.code.value
        if isinstance(outcome, RequestRefused)
        else type(outcome).__name__
        if isinstance(outcome, Exception)
        else "receipt"
        for outcome in outcomes
    ]
