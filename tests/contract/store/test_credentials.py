"""Tokens of operators and clients, on SQLite and on PostgreSQL."""

from dataclasses import replace

import pytest

from qidpfl_server.clock import SECOND
from qidpfl_server.domain import OperatorToken
from qidpfl_server.errors import RequestRefused
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.service.credentials import (
    ClientToken,
    Credential,
    create_operator_token,
    enrol_with_certificate,
    find_credential,
    operator_tokens,
    revoke_operator_token,
    rotate_client_token,
    rotate_operator_token,
    use_client_token,
)
from qidpfl_server.service.enrolment import enrol, revoke_client
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.credentials import CreatedOperatorToken, CreateOperatorToken, OperatorRole
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import EnrolAnswer, EnrolRequest
from support.store_rows import NOW, Open, at_once, new_task

CERTIFICATE = "c" * 64


def created(store: Store, *, task_id: str | None = None, valid_s: float | None = None) -> CreatedOperatorToken:
    request = CreateOperatorToken(name="someone", role=OperatorRole.VIEWER, task_id=task_id, valid_s=valid_s)
    return store.write(lambda tx: create_operator_token(tx, request, NOW))


def found(store: Store, token: str, now: int = NOW) -> Credential | None:
    return store.read(lambda tx: find_credential(tx, hash_secret(token), now))


def rotated(store: Store, token_id: str, now: int = NOW, overlap_s: float = 60.0) -> CreatedOperatorToken:
    return store.write(lambda tx: rotate_operator_token(tx, token_id, overlap_s=overlap_s, valid_s=None, now=now))


def used(store: Store, token: str) -> bool:
    """Use the token of a client for a request."""
    client = found(store, token)
    return isinstance(client, ClientToken) and store.write(lambda tx: use_client_token(tx, client))


def enrolled(store: Store) -> EnrolAnswer:
    task = new_task(store)
    request = EnrolRequest(enrolment_code=f"{task.task_id}.code", enrolment_key="the-key-of-client-0")
    answer = store.write(lambda tx: enrol(tx, task.task_id, request, NOW))
    assert used(store, answer.token)
    return answer


def next_token(store: Store, client: EnrolAnswer, token: str | None = None) -> str:
    current = hash_secret(token or client.token)
    return store.write(lambda tx: rotate_client_token(tx, client.client_id, current)).token


# --- operators -------------------------------------------------------------------------------------------------------


def test_an_operator_is_found_until_the_token_is_revoked(store: Store) -> None:
    task_id = new_task(store).task_id
    made = created(store, task_id=task_id)
    known = found(store, made.token)
    assert isinstance(known, OperatorToken) and (known.role, known.task_id) == ("viewer", task_id)
    for _ in range(2):
        store.write(lambda tx: revoke_operator_token(tx, made.info.token_id, NOW + 5))
    assert found(store, made.token) is None
    (info,) = store.read(lambda tx: operator_tokens(tx, NOW))
    assert info.revoked_at is not None and made.token not in info.model_dump_json()


def test_a_token_ends_at_its_time(store: Store) -> None:
    made = created(store, valid_s=10)
    assert found(store, made.token, NOW + 10 * SECOND - 1) is not None
    assert found(store, made.token, NOW + 10 * SECOND) is None
    with pytest.raises(RequestRefused) as refusal:
        rotated(store, made.info.token_id, NOW + 10 * SECOND)
    assert refusal.value.code is ErrorCode.TOKEN_REVOKED


def test_an_old_token_is_valid_for_the_overlap_only(store: Store) -> None:
    old = created(store)
    new = rotated(store, old.info.token_id)
    assert new.info.old_valid_until is not None
    later = NOW + 60 * SECOND
    assert [found(store, token, later - 1) is not None for token in (old.token, new.token)] == [True, True]
    assert [found(store, token, later) is not None for token in (old.token, new.token)] == [False, True]
    store.write(lambda tx: revoke_operator_token(tx, old.info.token_id, NOW))
    assert [found(store, token) for token in (old.token, new.token)] == [None, None]


def test_a_rotation_whose_answer_was_lost_can_be_repeated(store: Store) -> None:
    """The fault: the second rotation makes the token that was never seen the old one, and locks the operator out."""
    old = created(store)
    store.write(lambda tx: tx.operator_tokens.mark_used(old.info.token_id, hash_secret(old.token)))
    lost = rotated(store, old.info.token_id)
    new = rotated(store, old.info.token_id, NOW + SECOND)
    assert [found(store, one.token) is not None for one in (old, lost, new)] == [True, False, True]
    store.write(lambda tx: tx.operator_tokens.mark_used(new.info.token_id, hash_secret(new.token)))
    newer = rotated(store, old.info.token_id, NOW + 2 * SECOND)
    assert [found(store, one.token) is not None for one in (old, new, newer)] == [False, True, True]


def test_a_change_of_tokens_is_counted_for_other_processes(opened: Open) -> None:
    store = opened()
    made = created(store)
    before = store.read(lambda tx: tx.change_counter())
    store.write(lambda tx: revoke_operator_token(tx, made.info.token_id, NOW))
    assert store.read(lambda tx: tx.change_counter()) == before + 1
    assert store.changes.misses(before) and not store.changes.misses(before + 1)


def test_a_token_for_an_unknown_task_is_refused(store: Store) -> None:
    with pytest.raises(RequestRefused) as refusal:
        created(store, task_id="0" * 24)
    assert refusal.value.code is ErrorCode.NOT_FOUND


# --- clients ---------------------------------------------------------------------------------------------------------


def test_the_old_token_of_a_client_is_valid_until_the_first_use_of_the_new_one(store: Store) -> None:
    client = enrolled(store)
    new = next_token(store, client)
    assert [found(store, token) is not None for token in (client.token, new)] == [True, True]
    assert used(store, client.token) and used(store, new) and used(store, new)
    assert found(store, client.token) is None


def test_a_client_has_one_next_token_at_most(store: Store) -> None:
    client = enrolled(store)
    lost, new = next_token(store, client), next_token(store, client)
    assert not used(store, lost) and used(store, client.token) and used(store, new)


def test_two_first_uses_at_once_are_both_served(opened: Open) -> None:
    client = enrolled(opened())
    new = next_token(opened(), client)
    first = found(opened(), new)
    assert isinstance(first, ClientToken) and first.is_next

    def use(store: Store) -> bool:
        return store.write(lambda tx: use_client_token(tx, first))

    assert at_once([opened() for _ in range(4)], use) == [True] * 4


def test_a_revoked_client_has_no_next_token(store: Store) -> None:
    """The faults: the next token outlives the revocation, or a request that was let in before makes another one."""
    client = enrolled(store)
    new = next_token(store, client)
    known = found(store, new)
    task_id = store.read(lambda tx: tx.clients.get(client.client_id)).task_id  # type: ignore[union-attr]
    store.write(lambda tx: revoke_client(tx, task_id, client.client_id, NOW))
    assert [found(store, token) for token in (client.token, new)] == [None, None]
    assert isinstance(known, ClientToken) and not store.write(lambda tx: use_client_token(tx, known))
    with pytest.raises(RequestRefused) as refusal:
        next_token(store, client)
    assert refusal.value.code is ErrorCode.UNAUTHENTICATED


def test_a_certificate_has_one_place_in_a_task(store: Store) -> None:
    task = new_task(store)

    def join(certificate: str) -> EnrolAnswer:
        return store.write(lambda tx: enrol_with_certificate(tx, task.task_id, certificate, None, NOW))

    first, again, other = join(CERTIFICATE), join(CERTIFICATE), join("d" * 64)
    assert (again.client_id, again.ordinal) == (first.client_id, first.ordinal) != (other.client_id, other.ordinal)
    assert found(store, first.token) is None
    known = found(store, again.token)
    assert isinstance(known, ClientToken) and known.certificate == CERTIFICATE
    assert used(store, again.token)
    with pytest.raises(RequestRefused) as refusal:
        join(CERTIFICATE)
    assert refusal.value.code is ErrorCode.ALREADY_ENROLLED
    # The next token is bound to the same certificate.
    following = found(store, next_token(store, again))
    assert isinstance(following, ClientToken) and replace(following, is_next=False).certificate == CERTIFICATE
