"""Before the first round: enrol, store the profile, select; and leave."""

from collections.abc import Sequence

import numpy as np

from qidpfl_shared.core.custom_rules import CustomRuleFailed
from qidpfl_shared.core.selection import Selection, SelectionStatus, select
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import EnrolAnswer, EnrolRequest, Profile, TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..clock import Micros, seconds
from ..domain import Client, ClientState, EndReason, Task
from ..errors import RequestRefused
from ..identifiers import hash_secret, new_id, new_secret
from ..plugins.rules import custom_select, fail_by_rule, missing_rules
from ..store.transaction import Transaction
from .lifecycle import end_task, get_task_for_update, known_client
from .planning import open_round


def enrol(tx: Transaction, task_id: str, request: EnrolRequest, now: Micros) -> EnrolAnswer:
    """A new client, or the same one with a fresh token when its key is known and it has no profile yet."""
    code_hash, key_hash = hash_secret(request.enrolment_code), hash_secret(request.enrolment_key)
    if tx.tasks.task_of_code(code_hash) != task_id:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    task = get_task_for_update(tx, task_id)
    _require_enrolling(task)
    token = new_secret()
    known = tx.clients.by_key(task_id, key_hash)
    if known is not None:
        if known.state is not ClientState.ENROLLED:
            raise RequestRefused(ErrorCode.ALREADY_ENROLLED)
        tx.clients.set_token(known.client_id, hash_secret(token))
        client = known
    else:
        ordinal = _free_ordinal(tx, task, request.ordinal)
        client = Client(client_id=new_id(), task_id=task_id, ordinal=ordinal, state=ClientState.ENROLLED)
        if not tx.tasks.use_code(code_hash, client.client_id):
            raise RequestRefused(ErrorCode.CODE_USED)
        tx.clients.insert(client, key_hash=key_hash, token_hash=hash_secret(token), at=now)
        tx.tasks.note_enrolment(task_id, now)
        tx.events.add(task_id, "client.enrolled", at=now, detail=f"ordinal {ordinal}")
    # Also for a repeat: other coordinators have to hear that a token was revoked.
    tx.touch(task_id)
    failpoint("enrol.before_commit")
    return EnrolAnswer(client_id=client.client_id, token=token, ordinal=client.ordinal, spec_digest=task.spec_digest)


def store_profile(tx: Transaction, client_id: str, profile: Profile, now: Micros) -> None:
    """Store what a client says of itself, once. The expected number of profiles starts the selection."""
    task = get_task_for_update(tx, known_client(tx, client_id).task_id)
    # Read only now that the task is held: another process may just have stored it.
    client = known_client(tx, client_id)
    if client.has_profile:
        if _profile_of(client) != profile:
            raise RequestRefused(ErrorCode.PROFILE_FROZEN)
        return
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
    tx.events.add(task.task_id, "client.profiled", at=now, detail=f"ordinal {client.ordinal}")
    tx.touch(task.task_id)
    if task.state is TaskState.TRAINING:
        _judge_late_joiner(tx, task, client_id)
    elif selection_is_due(tx, task, now) and not missing_rules(task.spec):
        select_clients(tx, task, now)
    failpoint("profile.before_commit")


def leave(tx: Transaction, client_id: str, now: Micros) -> None:
    """Out from the next round on. Repeating it changes nothing."""
    get_task_for_update(tx, known_client(tx, client_id).task_id)
    client = known_client(tx, client_id)
    if client.state is ClientState.LEFT:
        return
    tx.clients.set_left(client_id)
    tx.events.add(client.task_id, "client.left", at=now, detail=f"ordinal {client.ordinal}")
    tx.touch(client.task_id)


def selection_is_due(tx: Transaction, task: Task, now: Micros) -> bool:
    """Whether the expected number has a profile; or the minimum, and the window is over or nobody new comes."""
    profiled = len(tx.clients.in_state(task.task_id, ClientState.PROFILED))
    rules = task.spec.rounds
    if profiled < rules.min_clients:
        return False
    if rules.expected_clients is not None and profiled >= rules.expected_clients:
        return True
    return now >= selection_time(task)


def selection_time(task: Task) -> Micros:
    """When to stop waiting for more clients: the window is over, or it has been quiet for long enough."""
    rules = task.spec.rounds
    return min(task.opened_at + seconds(rules.enrolment_window_s), task.last_enrolment_at + seconds(rules.quiet_s))


def select_clients(tx: Transaction, task: Task, now: Micros) -> None:
    """Judge every profile by its labels, then open the first round or end the task."""
    candidates = tx.clients.in_state(task.task_id, ClientState.PROFILED)
    try:
        selection = selection_of(task.spec, candidates)
    except CustomRuleFailed as error:
        fail_by_rule(tx, task, task.spec.selection.own_rules, error, now)
        return
    for client, kept, filled_up, distance in zip(
        candidates, selection.selected, selection.filled_up, selection.label_distances, strict=True
    ):
        tx.clients.set_selection(
            client.client_id, selected=bool(kept), label_distance=float(distance), filled_up=bool(filled_up)
        )
    kept_count = int(np.count_nonzero(selection.selected))
    tx.events.add(task.task_id, "task.selected", at=now, detail=f"{kept_count} of {len(candidates)} clients")
    tx.touch(task.task_id)
    if selection.status is SelectionStatus.TOO_FEW_CLIENTS:
        end_task(tx, task, TaskState.FAILED, EndReason.TOO_FEW_CLIENTS, now, "too few pass the selection")
        return
    tx.tasks.move(task.task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING)
    open_round(tx, get_task_for_update(tx, task.task_id), 1, now)


def selection_of(spec: TaskSpec, candidates: Sequence[Client]) -> Selection:
    """Whom the rule of a task keeps of these clients, in the order of their ordinals."""
    histograms = [client.label_counts or () for client in candidates]
    return select(
        rule=spec.selection_rule(custom_select(spec)),
        histograms=histograms,
        reference=spec.label_reference(histograms),
        min_clients=spec.rounds.min_clients,
        shortfall=spec.selection.shortfall,
        sizes=[client.size or 0 for client in candidates],
        privacy_values=[client.privacy_value or 0.0 for client in candidates],
    )


def _judge_late_joiner(tx: Transaction, task: Task, client_id: str) -> None:
    """Where late joiners are allowed, one is judged by the same rule, alone."""
    client = known_client(tx, client_id)
    assert client.label_counts is not None
    everybody = [other.label_counts for other in tx.clients.of_task(task.task_id) if other.label_counts is not None]
    verdict = select(
        rule=task.spec.selection_rule(),
        histograms=[client.label_counts],
        reference=task.spec.label_reference(everybody),
        min_clients=1,
    )
    tx.clients.set_selection(
        client_id, selected=bool(verdict.selected[0]), label_distance=float(verdict.label_distances[0])
    )


def _require_enrolling(task: Task) -> None:
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    if task.state is not TaskState.ENROLLING and not task.spec.rounds.late_joiners:
        raise RequestRefused(ErrorCode.TASK_NOT_ENROLLING)


def _free_ordinal(tx: Transaction, task: Task, wished: int | None) -> int:
    places = task.spec.bounds.clients_max
    if task.spec.workload.partition is not None:
        places = min(places, task.spec.workload.partition.clients)
    taken = tx.clients.ordinals(task.task_id)
    if len(taken) >= places:
        raise RequestRefused(ErrorCode.TASK_FULL, f"all {places} places are taken")
    if wished is None:
        return next(ordinal for ordinal in range(places) if ordinal not in taken)
    if wished >= places:
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"ordinals run from 0 to {places - 1}")
    if wished in taken:
        raise RequestRefused(ErrorCode.ORDINAL_TAKEN, f"ordinal {wished} is taken")
    return wished


def _check_profile(task: Task, profile: Profile) -> None:
    bounds, labels = task.spec.bounds, task.spec.workload.labels
    if len(profile.label_counts) != labels:
        raise RequestRefused(ErrorCode.HISTOGRAM_MISMATCH, f"label_counts must have {labels} entries")
    if profile.size > bounds.size_max:
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"size must not exceed {bounds.size_max}")
    if not bounds.privacy_value_min <= profile.privacy_value <= bounds.privacy_value_max:
        allowed = f"[{bounds.privacy_value_min}, {bounds.privacy_value_max}]"
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"privacy_value must lie in {allowed}")


def _profile_of(client: Client) -> Profile:
    return Profile(
        label_counts=client.label_counts or (),
        size=client.size or 0,
        privacy_value=client.privacy_value or 0.0,
        histogram_rho=client.histogram_rho,
        rho_cap=client.rho_cap,
        lifetime_rho=client.lifetime_rho,
    )
