"""Which signed messages a journal accepts: each test catches a coordinator that forges, forgets or rewrites."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from qidpfl_client.api import TaskApi
from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.journal.journal import Journal, Membership
from qidpfl_client.journal.receipts import KeptReceipts
from qidpfl_client.participant.receipts import ReceiptKeeper
from qidpfl_shared.protocol.messages import BudgetReceipt, UpdateReceipt
from qidpfl_shared.protocol.signatures import ChainPosition, KeyList, PublicKeyInfo, SignedMessage, SigningKey

AT = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "abc123"
KEY = SigningKey.new()


def info(key: SigningKey, by: SigningKey | None = None) -> PublicKeyInfo:
    endorsement = None if by is None else by.endorse(key.public_key)
    return PublicKeyInfo(key_id=key.key_id, public_key=key.public_key, created_at=AT, endorsement=endorsement)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.save_membership(
            Membership(task_id=TASK, server="http://x", enrolment_key="k", spec="{}", spec_digest="d")
        )
        yield journal


def keeper(journal: Journal, *keys: PublicKeyInfo) -> ReceiptKeeper:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/keys" and "Authorization" not in request.headers
        return httpx.Response(200, text=KeyList(keys=keys or (info(KEY),)).model_dump_json())

    http = httpx.Client(base_url="http://127.0.0.1", transport=httpx.MockTransport(answer))
    return ReceiptKeeper(api=TaskApi(http, task_id=TASK, token="a-token-of-the-client"), kept=journal.receipts)


def position(sequence: int, head: str = "ab") -> ChainPosition:
    return ChainPosition(task_id=TASK, sequence=sequence, head=head * 32)


def budget(sequence: int, *, key: SigningKey = KEY, head: str = "ab") -> BudgetReceipt:
    receipt = BudgetReceipt(
        round_number=1, client_id="c", state="declared", rho=0.1, recorded_at=AT, chain=position(sequence, head)
    )
    return key.signed(receipt)


def update(sequence: int, *, head: str = "cd") -> UpdateReceipt:
    return KEY.signed(
        UpdateReceipt(
            round_number=1,
            client_id="c",
            digest="cd" * 32,
            byte_length=4,
            received_at=AT,
            chain=position(sequence, head),
        )
    )


def kept(journal: Journal) -> list[tuple[str, int]]:
    return [(receipt.kind, receipt.sequence) for receipt in journal.receipts.all(TASK)]


def test_signed_messages_are_kept_once_and_a_repeat_changes_nothing(journal: Journal) -> None:
    keep = keeper(journal)
    keep.pin(KEY.public_key)
    for _ in range(2):
        keep.keep(budget(4), round_number=1)
        keep.keep(update(6), round_number=1)
    assert kept(journal) == [("budget", 4), ("update", 6)]


def test_a_coordinator_that_signs_nothing_is_accepted_until_a_key_is_pinned(journal: Journal) -> None:
    keep, unsigned = keeper(journal), BudgetReceipt(round_number=1, state="joined", recorded_at=AT)
    keep.pin(None)
    keep.keep(unsigned, round_number=1)
    assert kept(journal) == []
    keep.pin(KEY.public_key)
    with pytest.raises(UntrustedCoordinator, match="has not signed its answer"):
        keep.keep(unsigned, round_number=1)


def test_a_journal_from_before_the_signatures_pins_the_first_key_that_it_sees(journal: Journal) -> None:
    keeper(journal).keep(budget(4), round_number=1)
    assert list(journal.receipts.pinned(TASK)) == [KEY.key_id]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (budget(4).model_copy(update={"rho": 0.2}), "does not fit the message"),
        (budget(4).model_copy(update={"chain": position(5)}), "does not fit the message"),
        (
            KEY.signed(budget(4).model_copy(update={"chain": ChainPosition(task_id="d", sequence=4, head="ab" * 32)})),
            "for another task",
        ),
        (budget(4, key=SigningKey.new()), "unknown key"),
    ],
    ids=["other content", "other place", "other task", "other key"],
)
def test_a_forged_message_is_refused_and_not_kept(message: SignedMessage, reason: str, journal: Journal) -> None:
    keep = keeper(journal)
    keep.pin(KEY.public_key)
    with pytest.raises(UntrustedCoordinator, match=reason):
        keep.keep(message, round_number=1)
    assert kept(journal) == []


def test_a_chain_that_goes_backwards_or_splits_is_refused(journal: Journal) -> None:
    keep = keeper(journal)
    keep.pin(KEY.public_key)
    keep.keep(budget(4), round_number=1)
    with pytest.raises(UntrustedCoordinator, match="lost or rewritten"):
        keep.keep(update(3), round_number=1)
    with pytest.raises(UntrustedCoordinator, match="another head at entry 4"):
        keep.keep(update(4, head="ee"), round_number=1)
    with pytest.raises(UntrustedCoordinator, match="lost or rewritten"):
        keep.keep(budget(2), round_number=1)
    assert kept(journal) == [("budget", 4)]


def test_an_endorsed_key_is_pinned_and_another_one_is_not(journal: Journal) -> None:
    new, intruder = SigningKey.new(), SigningKey.new()
    keeper(journal).pin(KEY.public_key)
    with pytest.raises(UntrustedCoordinator, match="another key than the pinned one"):
        keeper(journal, info(KEY), info(intruder)).keep(budget(4, key=intruder), round_number=1)
    keeper(journal, info(KEY), info(new, KEY)).keep(budget(4, key=new), round_number=1)
    assert list(journal.receipts.pinned(TASK)) == [KEY.key_id, new.key_id]


def test_a_message_further_on_than_all_others_costs_one_statement(journal: Journal) -> None:
    keep = keeper(journal)
    keep.pin(KEY.public_key)
    keep.keep(budget(4), round_number=1)
    said: list[str] = []
    journal._file._opened.set_trace_callback(said.append)
    keep.keep(update(6), round_number=1)
    assert [statement.split()[0] for statement in said] == ["REPLACE"]
    # The same entry of the chain again, with another head.
    with pytest.raises(UntrustedCoordinator, match="rewritten"):
        keep.keep(budget(6), round_number=1)


def test_the_order_is_known_to_a_journal_that_is_opened_again(journal: Journal) -> None:
    keep = keeper(journal)
    keep.pin(KEY.public_key)
    keep.keep(update(6), round_number=1)
    # As after a restart: nothing is remembered.
    again = KeptReceipts(journal._file)
    with pytest.raises(UntrustedCoordinator, match="is at entry 5"):
        again.keep(update(5, head="ef"), round_number=1)
