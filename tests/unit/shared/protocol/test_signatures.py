"""Signatures of messages, and keys that replace each other: each test catches a forged or misused signature."""

from datetime import UTC, datetime
from typing import Any

import pytest

from qidpfl_shared.protocol.evidence import ProfileReceipt
from qidpfl_shared.protocol.messages import BudgetReceipt, EnrolAnswer, UpdateReceipt
from qidpfl_shared.protocol.signatures import (
    ChainHead,
    ChainPosition,
    KeyList,
    PublicKeyInfo,
    SigningKey,
    WrongSignature,
    key_id_of,
    successors,
    verify,
    verify_message,
)

KEY = SigningKey.new()
AT = datetime(2026, 1, 1, tzinfo=UTC)
POSITION = ChainPosition(task_id="abc", sequence=7, head="ab" * 32)
RECEIPT = UpdateReceipt(round_number=1, client_id="c", digest="cd" * 32, byte_length=4, received_at=AT, chain=POSITION)


def test_the_same_message_has_the_same_signature_also_from_a_key_that_was_stored() -> None:
    """A repeat gets the first receipt byte for byte, also after a restart."""
    again = SigningKey.from_pem(KEY.pem().encode())
    assert KEY.signed(RECEIPT) == again.signed(RECEIPT)
    verify_message(KEY.public_key, KEY.signed(RECEIPT))


def test_a_message_that_went_over_the_wire_verifies() -> None:
    sent = KEY.signed(RECEIPT).model_dump_json()
    verify_message(KEY.public_key, UpdateReceipt.model_validate_json(sent))


@pytest.mark.parametrize(
    "change",
    [
        {"round_number": 2},
        {"client_id": "d"},
        {"digest": "ce" * 32},
        {"chain": POSITION.model_copy(update={"sequence": 8})},
        {"chain": POSITION.model_copy(update={"task_id": "xyz"})},
    ],
    ids=str,
)
def test_a_changed_message_does_not_verify(change: dict[str, Any]) -> None:
    with pytest.raises(WrongSignature):
        verify_message(KEY.public_key, KEY.signed(RECEIPT).model_copy(update=change))


def test_a_signature_of_one_kind_is_not_one_of_another() -> None:
    """Two kinds may have the same fields: the kind is signed too."""
    facts = {"client_id": "c"}
    with pytest.raises(WrongSignature):
        verify(KEY.public_key, "profile", facts, KEY.sign("budget", facts))


def test_another_key_does_not_verify() -> None:
    with pytest.raises(WrongSignature, match="signed with key"):
        verify_message(SigningKey.new().public_key, KEY.signed(RECEIPT))


def test_the_signature_does_not_cover_the_token() -> None:
    """A client can show its enrolment to others without its token."""
    answer = EnrolAnswer(
        client_id="c", token="t" * 20, ordinal=0, spec_digest="ab" * 32, public_key=KEY.public_key, chain=POSITION
    )
    assert "token" not in answer.signed_part()
    verify_message(KEY.public_key, KEY.signed(answer).model_copy(update={"token": "u" * 20}))


def test_a_message_without_a_place_in_the_chain_is_not_signed() -> None:
    unplaced = BudgetReceipt(round_number=1, state="joined", recorded_at=AT)
    assert KEY.signed(unplaced).signature is None
    with pytest.raises(WrongSignature, match="no signature"):
        verify_message(KEY.public_key, ProfileReceipt(client_id="c", profile_digest="ab" * 32))
    verify_message(KEY.public_key, KEY.signed(ChainHead(chain=POSITION)))


@pytest.mark.parametrize("text", ["", "not base64!", "AAAA"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        key_id_of(text)


@pytest.mark.parametrize("text", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        SigningKey.from_pem(text)


def test_the_repr_of_a_key_does_not_show_it() -> None:
    assert KEY.pem().splitlines()[1][:20] not in repr(KEY) + str(vars(KEY))


def info(key: SigningKey, by: SigningKey | None = None) -> PublicKeyInfo:
    endorsement = None if by is None else by.endorse(key.public_key)
    return PublicKeyInfo(key_id=key.key_id, public_key=key.public_key, created_at=AT, endorsement=endorsement)


def test_a_pinned_key_leads_to_its_successors() -> None:
    first, second, third = SigningKey.new(), SigningKey.new(), SigningKey.new()
    keys = KeyList(keys=(info(first), info(second, first), info(third, second)))
    assert [key.key_id for key in successors(first.public_key, keys)] == [second.key_id, third.key_id]
    assert successors(third.public_key, keys) == []


def test_a_key_without_the_endorsement_of_the_pinned_one_is_refused() -> None:
    first, second, intruder = SigningKey.new(), SigningKey.new(), SigningKey.new()
    lists = [
        KeyList(keys=(info(first), info(second))),
        KeyList(keys=(info(first), info(second, intruder))),
        KeyList(keys=(info(intruder), info(second, intruder))),
    ]
    for keys in lists:
        with pytest.raises(WrongSignature):
            successors(first.public_key, keys)
