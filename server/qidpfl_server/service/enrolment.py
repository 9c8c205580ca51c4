"""Clients of a task: enrol, store the profile, leave; and how an admin lists and revokes them."""

from typing import TypedDict

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.evidence import ProfileReceipt
from qidpfl_shared.protocol.fields import FieldValue
from qidpfl_shared.protocol.messages import (
    ClientSummary,
    EnrolAnswer,
    EnrolRequest,
    Profile,
    TaskState,
)
from qidpfl_shared.protocol.task_spec import SelectionRule

from ..clock import Micros, seconds
from ..domain import Client, ClientState, Task
from ..errors import RequestRefused
from ..identifiers import hash_secret, new_id, new_secret
from ..plugins.rules import NO_RULES, RuleRegistry
from ..store.guarded import client_subject
from ..store.transaction import Transaction
from .lifecycle import get_task, get_task_for_update, known_client
from .receipts import profile_receipt
from .rounds.planning import alignment_scores, flagged_clients
from .selection import select_clients, select_late_joiner, selection_is_due


def enrol(tx: Transaction, task_id: str, request: EnrolRequest, now: Micros) -> EnrolAnswer:
    """Enrol a new client. A repeat with the same key only gets a new token, until the client has used the old one.

    A repeat may be a duplicate that the network has delayed. Its answer reaches no client, so it must not replace a
    token with which the client works.
    """
    code_hash, key_hash = hash_secret(request.enrolment_code), hash_secret(request.enrolment_key)
    if tx.tasks.task_of_code(code_hash) != task_id:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    return admit(tx, task_id, key_hash=key_hash, code_hash=code_hash, ordinal=request.ordinal, now=now)


def admit(
    tx: Transaction, task_id: str, *, key_hash: str, code_hash: str | None = None, ordinal: int | None, now: Micros
) -> EnrolAnswer:
    """Give a client with valid credentials its place and a token. `code_hash` is None for a certificate."""
    task = get_task_for_update(tx, task_id)
    _require_enrolling(task)
    token = new_secret()
    known = tx.clients.by_key(task_id, key_hash)
    if known is not None:
        if not tx.clients.replace_unused_token(known.client_id, hash_secret(token)):
            raise RequestRefused(ErrorCode.ALREADY_ENROLLED)
        client = known
    else:
        ordinal = _free_ordinal(tx, task, ordinal, now)
        client = Client(client_id=new_id(), task_id=task_id, ordinal=ordinal, state=ClientState.ENROLLED)
        if code_hash is not None and not tx.tasks.use_code(code_hash, client.client_id):
            raise RequestRefused(ErrorCode.CODE_USED)
        tx.clients.insert(client, key_hash=key_hash, token_hash=hash_secret(token), at=now)
        tx.tasks.note_enrolment(task_id, now)
        tx.events.add(task_id, "client.enrolled", at=now, **_place(client))
    # Also for a repeat: other coordinators must drop the old token from their caches.
    tx.touch(task_id)
    failpoint("enrol.before_commit")
    return EnrolAnswer(
        client_id=client.client_id,
        token=token,
        ordinal=client.ordinal,
        spec_digest=task.spec_digest,
        public_key=None if tx.key is None else tx.key.public_key,
        chain=tx.chain.position(task_id, client_subject(client.client_id)),
    )


def use_token(tx: Transaction, client: Client, token_hash: str) -> bool:
    """Keep the token of a client valid from now on; False if another one has replaced it.

    Called before the first request with a token is served: afterwards only a revocation makes the token invalid.
    """
    if client.token_used or client.state is not ClientState.ENROLLED:
        return True
    return tx.clients.mark_token_used(client.client_id, token_hash)


def store_profile(
    tx: Transaction, client_id: str, profile: Profile, now: Micros, rules: RuleRegistry = NO_RULES
) -> ProfileReceipt:
    """Store the profile of a client, once. The last expected profile starts the selection."""
    task = get_task_for_update(tx, known_client(tx, client_id).task_id)
    # Read after the task is locked: another process may just have stored the profile.
    client = known_client(tx, client_id)
    if client.has_profile:
        if other := _changed_fields(_profile_of(client), profile):
            raise RequestRefused(ErrorCode.PROFILE_FROZEN, f"the stored profile has another {', '.join(other)}")
        return profile_receipt(tx, client, profile)
    _require_enrolling(task)
    if client.state is ClientState.LEFT:
        raise RequestRefused(ErrorCode.PROFILE_FROZEN, "the client has left the task")
    _check_profile(task, profile)
    tx.clients.set_profile(
        client_id,
        label_counts=profile.label_counts,
        size=profile.size,
        privacy_value=profile.privacy_value,
        histogram_rho=profile.histogram_rho,
        rho_cap=profile.rho_cap,
        lifetime_rho=profile.lifetime_rho,
    )
    # Before the selection changes the client again: the receipt names this entry.
    receipt = profile_receipt(tx, client, profile)
    tx.events.add(task.task_id, "client.profiled", at=now, **_place(client))
    tx.touch(task.task_id)
    if task.state is TaskState.TRAINING:
        select_late_joiner(tx, task, client_id)
    elif selection_is_due(tx, task, now) and not rules.missing(task.spec):
        select_clients(tx, task, now, rules)
    failpoint("profile.before_commit")
    return receipt


def leave(tx: Transaction, client_id: str, now: Micros) -> None:
    """Take no part from the next round on. Idempotent."""
    get_task_for_update(tx, known_client(tx, client_id).task_id)
    client = known_client(tx, client_id)
    if client.state is ClientState.LEFT:
        return
    tx.clients.set_left(client_id)
    tx.events.add(client.task_id, "client.left", at=now, **_place(client))
    tx.touch(client.task_id)


def client_summaries(tx: Transaction, task_id: str) -> list[ClientSummary]:
    """All clients of a task in the order of their ordinals, for admin and viewer."""
    task = get_task(tx, task_id)
    scores, flagged = alignment_scores(tx, task), flagged_clients(tx, task)
    return [
        _summary(client, scores.get(client.client_id), client.client_id in flagged)
        for client in tx.clients.of_task(task_id)
    ]


def revoke_client(tx: Transaction, task_id: str, client_id: str, now: Micros) -> None:
    """Revoke the token of a client. An upload that is still on its way is refused; its ledgers stay. Idempotent."""
    get_task_for_update(tx, task_id)
    client = tx.clients.get(client_id)
    if client is None or client.task_id != task_id:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such client in this task")
    if client.revoked_at is not None:
        return
    leave(tx, client_id, now)
    tx.clients.set_revoked(client_id, now)
    tx.events.add(task_id, "client.revoked", at=now, **_place(client))
    # The server forgets this secret at once, so that no token opens the account again.
    tx.clients.set_token(client_id, hash_secret(new_secret()))
    tx.credentials.drop_pending(client_id)
    tx.touch(task_id)


class _Place(TypedDict):
    detail: str
    fields: dict[str, FieldValue]


def _place(client: Client) -> _Place:
    """What the events of a client say about it."""
    return {
        "detail": f"ordinal {client.ordinal}",
        "fields": {"client_id": client.client_id, "ordinal": client.ordinal},
    }


def _require_enrolling(task: Task) -> None:
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    if task.state is not TaskState.ENROLLING and not task.spec.rounds.late_joiners:
        raise RequestRefused(ErrorCode.TASK_NOT_ENROLLING)


def _free_ordinal(tx: Transaction, task: Task, wished: int | None, now: Micros) -> int:
    places = task.spec.bounds.clients_max
    if task.spec.workload.partition is not None:
        places = min(places, task.spec.workload.partition.clients)
    taken = {ordinal for ordinal in tx.clients.ordinals(task.task_id) if ordinal < places}
    if task.spec.defence is not None and len(taken) >= places:
        taken -= _free_unused_places(tx, task, task.spec.defence.profile_s, places, now)
    if len(taken) >= places:
        raise RequestRefused(ErrorCode.TASK_FULL, f"all {places} places are taken")
    if wished is None:
        return next(ordinal for ordinal in range(places) if ordinal not in taken)
    if wished >= places:
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"ordinals run from 0 to {places - 1}")
    if wished in taken:
        raise RequestRefused(ErrorCode.ORDINAL_TAKEN, f"ordinal {wished} is taken")
    return wished


def _free_unused_places(tx: Transaction, task: Task, profile_s: float, places: int, now: Micros) -> set[int]:
    """Take the places of clients that left before any round, or that have no profile in time; returns their ordinals.

    Such a client keeps its row and its ledger. Its ordinal moves behind the places: no plan and no model depends on it.
    Its single-use code is free again.
    """
    late = tx.clients.enrolled_before(task.task_id, now - seconds(profile_s))
    busy = tx.rounds.planned_clients(task.task_id)
    clients = tx.clients.of_task(task.task_id)
    behind = max(places, *(client.ordinal + 1 for client in clients))
    freed = set()
    for client in clients:
        unused = client.state is ClientState.LEFT or (client.state is ClientState.ENROLLED and client.client_id in late)
        if unused and client.ordinal < places and client.client_id not in busy:
            freed.add(client.ordinal)
            tx.clients.retire(client.client_id, behind + len(freed) - 1)
            tx.tasks.free_codes(client.client_id)
            tx.events.add(task.task_id, "client.place_freed", at=now, **_place(client))
    return freed


def _check_profile(task: Task, profile: Profile) -> None:
    bounds, labels = task.spec.bounds, task.spec.workload.labels
    if profile.label_counts is None:
        # Rule `all` alone selects without the labels. Weights use the sizes, and a pooled reference the other clients.
        if task.spec.selection.rule is not SelectionRule.ALL:
            raise RequestRefused(ErrorCode.HISTOGRAM_REQUIRED, f"selection rule {task.spec.selection.rule} needs it")
    elif len(profile.label_counts) != labels:
        raise RequestRefused(ErrorCode.HISTOGRAM_MISMATCH, f"label_counts must have {labels} entries")
    if profile.size > bounds.size_max:
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"size must not exceed {bounds.size_max}")
    if profile.privacy_value is None:
        if task.spec.design.reports_values:
            raise RequestRefused(ErrorCode.PRIVACY_VALUE_REQUIRED, f"market {task.spec.market} needs it")
    elif not bounds.privacy_value_min <= profile.privacy_value <= bounds.privacy_value_max:
        allowed = f"[{bounds.privacy_value_min}, {bounds.privacy_value_max}]"
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"privacy_value must lie in {allowed}")


def _profile_of(client: Client) -> Profile:
    return Profile(
        label_counts=client.label_counts,
        size=client.size or 0,
        privacy_value=client.privacy_value,
        histogram_rho=client.histogram_rho,
        rho_cap=client.rho_cap,
        lifetime_rho=client.lifetime_rho,
    )


def _changed_fields(stored: Profile, sent: Profile) -> list[str]:
    return [name for name in Profile.model_fields if getattr(stored, name) != getattr(sent, name)]


def _summary(client: Client, alignment: float | None, flagged: bool) -> ClientSummary:
    return ClientSummary(
        client_id=client.client_id,
        ordinal=client.ordinal,
        state=client.state.value,
        size=client.size,
        privacy_value=client.privacy_value,
        label_counts=client.label_counts,
        histogram_rho=client.histogram_rho,
        rho_cap=client.rho_cap,
        lifetime_rho=client.lifetime_rho,
        label_distance=client.label_distance,
        filled_up=client.filled_up,
        set_aside=client.set_aside,
        excluded_until=client.excluded_until or None,
        alignment=alignment,
        flagged=None if alignment is None else flagged,
    )
