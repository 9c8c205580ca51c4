"""How a round ends: audit, aggregate, evaluate, pay; or void it and try again.

The expensive part (read updates, aggregate, evaluate) works on a snapshot of the round, outside any transaction. One
closing transaction then checks that the round has not changed, and writes all results. Several processes may do the
expensive part at the same time; only one of them closes the round. A long evaluation is deferred until the next round
is open, if nothing depends on it: see `deferred_evaluation`.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace

from qidpfl_shared.core.aggregation import ModelDiverged
from qidpfl_shared.core.noise_audit import NoiseAudit, NoiseVerdict, alpha_per_upload
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.task_spec import AuditMode

from ...clock import Micros
from ...domain import (
    Client,
    EndReason,
    Round,
    Task,
    UpdateVerdict,
)
from ...errors import DamagedState, UnreadableBlob
from ...plugins.rules import NO_RULES, RuleRegistry
from ...store.blobs import Blobs
from ...store.store import Store
from ...store.transaction import Transaction
from ..evaluation import Evaluator
from ..lifecycle import end_task, get_task_for_update
from ..scoring import Evaluation
from .acceptance import is_accepted, quorum
from .aggregation import NextModel, publish_model, staged_next_model
from .deferred_evaluation import evaluate_settled
from .misses import count_misses
from .payments import round_payments, sums_of
from .planning import deadlines, open_round
from .round_snapshot import ReadyRound, ready_round
from .settled_event import add_settled_event
from .settlement_timer import Stopwatch, Timing
from .weights import uploads_of, weighted_uploads


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What the noise audit says of every update, and which updates count."""

    verdicts: dict[str, NoiseVerdict | None]
    accepted: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Closing:
    """What the closing transaction needs beside the scores."""

    ready: ReadyRound
    audit: AuditResult
    model: NextModel
    watch: Stopwatch
    rules: RuleRegistry
    stop: bool


class _EvaluationNeeded(Exception):
    """The closing transaction opens no next round: it is rolled back, and the model is evaluated first."""


def settle_if_due(
    store: Store,
    task_id: str,
    evaluator: Evaluator | None,
    clock_now: Micros,
    *,
    rules: RuleRegistry = NO_RULES,
    stop: bool = False,
    observe: Callable[[Timing], None] | None = None,
    defer_from_s: float = math.inf,
) -> Round | None:
    """Settle or void the current round of a task if it is complete, or if `stop` is set. Blocks.

    Returns the round as it was before, if this process has changed it. Then `observe` is called with the duration of a
    settlement. An evaluation that is expected to take `defer_from_s` seconds is left for later, if nothing depends on
    it.
    """
    watch, evaluated = Stopwatch(clock_now), evaluator is not None

    def read() -> ReadyRound | None:
        return ready_round(store, task_id, clock_now, stop=stop, evaluated=evaluated)

    ready = read()
    if ready is not None and evaluator is not None and ready.previous is not None and ready.previous.awaits_evaluation:
        # At most one model of a task waits. If it is damaged, this settlement finds that too: it is its base.
        with suppress(DamagedState):
            evaluate_settled(store, task_id, evaluator, clock_now, observe=observe)
        watch, ready = Stopwatch(watch.now()), read()
    if ready is None:
        return None
    audit = audit_updates(ready)
    if len(audit.accepted) < quorum(ready.task.spec, ready.round_, ready.invitations, ready.updates, audit.accepted):
        voided = store.write(lambda tx: _void(tx, ready, watch.now(), stop=stop))
        return ready.round_ if voided else None
    with ExitStack() as staged:
        try:
            model = staged.enter_context(_next_model(store.blobs, ready, audit, keep_parameters=evaluated))
        except (DamagedState, ModelDiverged) as error:
            if isinstance(error, UnreadableBlob) and not stop:
                # The caller tries again: another coordinator, or a later read, may find the blob.
                raise
            reason = EndReason.STATE_DAMAGED if isinstance(error, DamagedState) else EndReason.MODEL_DIVERGED
            detail = str(error)
            failed = store.write(lambda tx: _fail(tx, ready, reason, detail, watch.now()))
            return ready.round_ if failed else None
        closing = _Closing(ready=ready, audit=audit, model=model, watch=watch, rules=rules, stop=stop)
        deferred = evaluated and not stop and _is_deferred(ready, defer_from_s)
        timing = _evaluate_and_close(store, closing, evaluator, deferred=deferred)
    failpoint("settle.after_commit")
    if timing is None:
        return None
    if observe is not None:
        observe(timing)
    return ready.round_


def _is_deferred(ready: ReadyRound, defer_from_s: float) -> bool:
    """Whether the next round is to open before the model is evaluated: only if the last evaluation took long."""
    if ready.previous is None or ready.task.paused or ready.round_.round_number >= ready.task.spec.game.horizon:
        return False
    return (ready.previous.evaluation_s or 0.0) >= defer_from_s and ready.previous.accuracy is not None


def _evaluate_and_close(
    store: Store, closing: _Closing, evaluator: Evaluator | None, *, deferred: bool
) -> Timing | None:
    """Close the round with the scores of its model, or before they are known. None if the round has changed."""
    watch = closing.watch
    if deferred:
        failpoint("settle.model_written")
        try:
            closed = store.write(lambda tx: _close(tx, closing, None, deferred=True))
            return watch.timing(evaluated=False) if closed else None
        except _EvaluationNeeded:
            # A task must not end before all its models are evaluated.
            pass
    with watch.evaluating():
        evaluation = _evaluate(closing.ready, closing.model, evaluator)
    failpoint("settle.model_written")
    closed = store.write(lambda tx: _close(tx, closing, evaluation))
    return watch.timing(evaluated=evaluation is not None) if closed else None


def audit_updates(ready: ReadyRound) -> AuditResult:
    """Audit the noise of every update, in the order of ordinals."""
    spec = ready.task.spec
    audited = spec.privacy.noise and spec.privacy.audit is not AuditMode.OFF
    mechanism = spec.privacy.mechanism.build()
    alpha = alpha_per_upload(
        alpha=spec.privacy.audit_alpha, clients=max(1, len(ready.clients)), rounds=spec.game.horizon
    )
    verdicts: dict[str, NoiseVerdict | None] = {}
    for client_id in sorted(ready.updates, key=lambda known: ready.clients[known].ordinal):
        verdicts[client_id] = None
        if audited:
            audit = NoiseAudit.of_upload(
                mechanism=mechanism,
                rho=ready.budgets[client_id].rho,
                size=ready.clients[client_id].size or 1,
                dimension=spec.dimension,
                alpha=alpha,
            )
            verdicts[client_id] = audit.verdict(squared_norm=ready.updates[client_id].squared_norm)
    accepted = tuple(
        client_id
        for client_id, verdict in verdicts.items()
        if is_accepted(spec, verdict) and ready.updates[client_id].voided_at is None
    )
    return AuditResult(verdicts=verdicts, accepted=accepted)


def _next_model(
    blobs: Blobs, ready: ReadyRound, audit: AuditResult, *, keep_parameters: bool
) -> AbstractContextManager[NextModel]:
    """Compute and stage the next version; compare the updates with each other in the first rounds."""
    spec, number = ready.task.spec, ready.round_.round_number
    uploads = uploads_of(spec, audit.accepted, ready.clients, ready.budgets, ready.invitations, ready.updates)
    parts = weighted_uploads(spec, uploads, participants=len(ready.invitations))
    return staged_next_model(
        blobs,
        spec,
        ready.base,
        parts,
        version=number,
        compare=spec.defence is not None and number <= spec.defence.alignment_rounds,
        keep_parameters=keep_parameters,
    )


def _evaluate(ready: ReadyRound, model: NextModel, evaluator: Evaluator | None) -> Evaluation | None:
    if evaluator is None or model.parameters is None:
        return None
    return evaluator.evaluate(ready.task.spec, model.parameters)


def _close(tx: Transaction, closing: _Closing, evaluation: Evaluation | None, *, deferred: bool = False) -> bool:
    """Close a round in one transaction: payments, model, misses, and the next round or the end of the task."""
    ready, audit, model, watch = closing.ready, closing.audit, closing.model, closing.watch
    now = watch.now()
    task, round_ = _unchanged(tx, ready)
    if round_ is None:
        return False
    alignments = dict(zip(audit.accepted, model.alignments, strict=False))
    payments = round_payments(task.spec, round_, ready.clients, ready.invitations, ready.budgets, audit.accepted)
    # Before the next round is opened: its reward may depend on this result.
    tx.rounds.settle(
        round_,
        kept_micro=payments.kept_micro,
        declared_total=math.fsum(budget.rho for budget in ready.budgets.values()),
        accuracy=evaluation.reported.accuracy if evaluation else None,
        loss=evaluation.reported.loss if evaluation else None,
        settled_at=now,
        sums=sums_of(payments, ready.invitations, ready.updates),
        evaluation_deferred=deferred,
    )
    verdicts = {
        client_id: UpdateVerdict(
            verdict=verdict, accepted=client_id in audit.accepted, alignment=alignments.get(client_id)
        )
        for client_id, verdict in audit.verdicts.items()
    }
    tx.rounds.set_verdicts(round_, verdicts)
    tx.payments.pay(round_, payments.due)
    tx.tasks.add_model(task.task_id, model.model, now)
    clients = count_misses(
        tx,
        ready.task,
        ready.round_,
        known=ready.clients,
        invitations=ready.invitations,
        budgets=ready.budgets,
        delivered=ready.updates,
    )
    add_settled_event(
        tx,
        round_,
        accepted=len(audit.accepted),
        verdicts=audit.verdicts.values(),
        payments=payments,
        evaluation=evaluation,
        at=now,
    )
    tx.touch(task.task_id)
    _continue(tx, task, round_, clients, evaluation, now, closing.rules, stop=closing.stop)
    if deferred and not _has_next(tx, round_):
        raise _EvaluationNeeded
    publish_model(tx, model)
    # Last, so that the timing includes nearly the whole settlement.
    timing = watch.timing(evaluated=evaluation is not None)
    closed = replace(round_, state=RoundState.SETTLED)
    tx.rounds.set_timing(closed, settlement_s=timing.settlement_s, evaluation_s=timing.evaluation_s)
    failpoint("settle.before_commit")
    return True


def _has_next(tx: Transaction, round_: Round) -> bool:
    latest = tx.rounds.latest(round_.task_id)
    return latest is not None and latest.round_number > round_.round_number


def _continue(
    tx: Transaction,
    task: Task,
    round_: Round,
    clients: list[Client] | None,
    evaluation: Evaluation | None,
    now: Micros,
    rules: RuleRegistry,
    *,
    stop: bool,
) -> None:
    """Open the next round unless the task is paused, or end it: stopped, target reached, or horizon reached."""
    target = task.spec.target_accuracy
    if stop:
        end_task(tx, task, TaskState.STOPPED, EndReason.STOPPED, now)
    elif target is not None and evaluation is not None and evaluation.deciding.accuracy >= target:
        end_task(tx, task, TaskState.FINISHED, EndReason.TARGET_REACHED, now)
    elif round_.round_number >= task.spec.game.horizon:
        end_task(tx, task, TaskState.FINISHED, EndReason.HORIZON_REACHED, now)
    elif not task.paused:
        open_round(tx, task, round_.round_number + 1, now, rules, clients)


def _void(tx: Transaction, ready: ReadyRound, now: Micros, *, stop: bool) -> bool:
    """Too few updates: start the next attempt with new deadlines. Budgets and updates of this attempt stay."""
    task, round_ = _unchanged(tx, ready)
    if round_ is None:
        return False
    tx.events.add(
        task.task_id,
        "round.void",
        at=now,
        round_number=round_.round_number,
        detail=f"attempt {round_.attempt}",
        fields={"attempt": round_.attempt, "updates": len(ready.updates), "needed": round_.min_updates},
    )
    tx.touch(task.task_id)
    if stop or round_.attempt >= task.spec.rounds.max_attempts:
        tx.rounds.void(round_)
        if stop:
            end_task(tx, task, TaskState.STOPPED, EndReason.STOPPED, now)
        else:
            detail = f"round {round_.round_number} after {round_.attempt} attempts"
            end_task(tx, task, TaskState.FAILED, EndReason.TOO_FEW_UPDATES, now, detail)
        return True
    declare_by, deliver_by = deadlines(tx, task, round_.round_number, now)
    tx.rounds.start_attempt(round_, declare_by=declare_by, deliver_by=deliver_by)
    return True


def _fail(tx: Transaction, ready: ReadyRound, reason: EndReason, detail: str, now: Micros) -> bool:
    task, round_ = _unchanged(tx, ready)
    if round_ is None:
        return False
    tx.rounds.void(round_)
    end_task(tx, task, TaskState.FAILED, reason, now, detail)
    return True


def _unchanged(tx: Transaction, ready: ReadyRound) -> tuple[Task, Round | None]:
    """The locked task, and the round if it is still what it was when it was read.

    Every change of a budget, an update or a round has an entry in the chain of the task. A chain with the same head
    therefore says that they are the same. Otherwise, for example if a client has left, they are compared.
    """
    # The only writer of a store needs no lock.
    if tx.is_only_writer and ready.chain is not None and tx.chain.present(ready.task.task_id) == ready.chain:
        return ready.task, ready.round_
    task = get_task_for_update(tx, ready.task.task_id)
    if ready.chain is not None and tx.chain.present(task.task_id) == ready.chain and not task.ended:
        return task, ready.round_
    round_ = tx.rounds.get(task.task_id, ready.round_.round_number)
    same = (
        not task.ended
        and round_ == ready.round_
        and tx.rounds.updates(task.task_id, ready.round_.round_number) == ready.updates
        and tx.rounds.budgets(task.task_id, ready.round_.round_number) == ready.budgets
    )
    return task, round_ if same else None
