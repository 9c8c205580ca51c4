"""What clients submit to an open round: an answer to the announcement, then an update.

Requests that arrive together form a batch: the server reads the round once and records the batch in one transaction.
Each request is served after those before it, and gets its own receipt or error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeVar

from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.mechanisms import Mechanism
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import (
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    RoundState,
    UpdateReceipt,
)
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...clock import Micros, as_datetime
from ...domain import Budget, BudgetState, Client, ClientState, Round, Update, standing_of
from ...errors import CoordinatorError, RequestRefused
from ...store.blobs import StagedBlob
from ...store.transaction import Transaction
from ..lifecycle import get_task, get_task_for_update
from ..receipts import with_budget_positions, with_update_positions
from .late_updates import note_late_update
from .planning import participant, round_is_complete
from .round_snapshot import RoundSnapshot, keep_snapshot, new_snapshot, take_snapshot

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# The relative rounding error of a sum of budgets.
_TOLERANCE = 1e-12
# The server refuses norms above this multiple of the expected noise; smaller deviations go to the noise audit.
_NORM_FACTOR = 10


@dataclass(frozen=True, kw_only=True)
class BudgetAnswer:
    """What a client answers to an announcement, and when."""

    client_id: str
    request: BudgetRequest
    at: Micros


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An update that a client announces: its digest, and when it came."""

    client_id: str
    digest: str
    at: Micros


@dataclass(frozen=True, kw_only=True)
class StagedDelivery(Delivery):
    """An update whose bytes are fsynced but not yet renamed into place."""

    blob: StagedBlob
    squared_norm: float


def declare_budgets(
    tx: Transaction, task_id: str, round_number: int, answers: Sequence[BudgetAnswer]
) -> list[BudgetReceipt | Exception]:
    """Record answers to an announcement. A repeat gets its first receipt, also after the round has closed."""
    snapshot = take_snapshot(tx, task_id, round_number)
    batch = BudgetBatch(tx, snapshot, answers)
    outcomes = _each(answers, batch.receipt, RequestRefused)
    batch.record()
    keep_snapshot(tx, snapshot)
    return with_budget_positions(tx, task_id, outcomes)


def find_receipts(
    tx: Transaction, task_id: str, round_number: int, deliveries: Sequence[Delivery]
) -> list[UpdateReceipt | Exception | None]:
    """Check uploads before the server reads their bodies: the receipt of a known one, None for one to accept."""
    batch = UploadBatch(tx, new_snapshot(tx, get_task(tx, task_id), round_number), deliveries)
    return with_update_positions(tx, task_id, _each(deliveries, batch.known_receipt, RequestRefused))


def accept_updates(
    tx: Transaction, task_id: str, round_number: int, deliveries: Sequence[StagedDelivery]
) -> list[UpdateReceipt | Exception]:
    """Record staged uploads and publish their bytes in one transaction. A refused upload does not affect the others."""
    snapshot = take_snapshot(tx, task_id, round_number)
    batch = UploadBatch(tx, snapshot, deliveries)
    # In the order of their bytes: two servers may store the same bytes for two tasks, and must not lock them crosswise.
    places = sorted(range(len(deliveries)), key=lambda place: deliveries[place].digest)
    served = _each(
        [deliveries[place] for place in places],
        lambda delivery: batch.known_receipt(delivery) or batch.accept(delivery),
        CoordinatorError,
        OSError,
    )
    outcomes = [outcome for _, outcome in sorted(zip(places, served, strict=True), key=itemgetter(0))]
    batch.record()
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if isinstance(outcome, RequestRefused) and outcome.code is ErrorCode.ROUND_CLOSED:
            note_late_update(tx, task_id, round_number, delivery.client_id, delivery.digest, delivery.at)
    keep_snapshot(tx, snapshot)
    return with_update_positions(tx, task_id, outcomes)


def void_update(tx: Transaction, task_id: str, round_number: int, client_id: str, now: Micros) -> None:
    """Void an update of an open round: it stays stored and its budget is spent, but it does not count and is not paid.

    Idempotent. Raises `RequestRefused` if the round is closed or there is no such update.
    """
    task = get_task_for_update(tx, task_id)
    round_ = tx.rounds.get(task_id, round_number)
    update = tx.rounds.updates(task_id, round_number, [client_id]).get(client_id)
    if round_ is None or update is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such update in this round")
    if update.voided_at is not None:
        return
    if round_.state is not RoundState.OPEN or task.ended:
        raise RequestRefused(ErrorCode.ROUND_CLOSED, f"round {round_number} is {round_.state}")
    tx.rounds.void_update(round_, client_id, now)
    tx.events.add(task_id, "update.voided", at=now, round_number=round_number, detail=f"client {client_id}")
    tx.touch(task_id)


def _each(
    items: Sequence[Item], serve: Callable[[Item], Outcome], *errors: type[Exception]
) -> list[Outcome | Exception]:
    """Serve the items in their order. An error of these types is the outcome of its item and does not stop the rest."""
    outcomes: list[Outcome | Exception] = []
    for item in items:
        try:
            outcomes.append(serve(item))
        except errors as error:
            outcomes.append(error)
    return outcomes


class _Batch:
    """Answers of clients to one round. It adds what it accepts to a snapshot, which is kept once that is recorded."""

    def __init__(self, tx: Transaction, snapshot: RoundSnapshot, client_ids: set[str]) -> None:
        snapshot.read(tx, client_ids)
        self._tx = tx
        self._snapshot = snapshot
        self._task = snapshot.task
        self._round_number = snapshot.round_number

    def _open_round(self) -> Round:
        round_ = self._snapshot.round_
        task = self._task
        if round_ is None and task.ended:
            raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}: read its ledger")
        if round_ is None:
            raise RequestRefused(ErrorCode.NOT_FOUND, f"round {self._round_number} has not been announced")
        if round_.state is not RoundState.OPEN or task.ended:
            # Also if the task has ended: a client keeps its bytes, because a task that failed may be resumed.
            end = f", and the task is {task.state}" if task.ended else ""
            raise RequestRefused(ErrorCode.ROUND_CLOSED, f"round {self._round_number} is {round_.state}{end}")
        return round_

    def _require_invited(self, client_id: str) -> None:
        client = self._snapshot.clients.get(client_id)
        refused = self._task.is_versioned and client is not None and client.state is ClientState.REFUSED
        standing = standing_of(self._snapshot.invitations.get(client_id), refused=refused)
        if standing is not Standing.INVITED:
            raise RequestRefused(ErrorCode.NOT_INVITED, f"standing in this round: {standing}")

    def _wake_when_complete(self, now: Micros) -> None:
        """Wake the scheduler if the round is now ready to settle. No waiting request needs to know of it."""
        round_ = self._open_round()
        answers = self._snapshot if self._snapshot.is_whole else self._tx.rounds
        if round_is_complete(answers, round_, now):
            self._tx.mark_due(round_.task_id)


class BudgetBatch(_Batch):
    """Serves answers to one announcement, in their order."""

    def __init__(self, tx: Transaction, snapshot: RoundSnapshot, answers: Sequence[BudgetAnswer]) -> None:
        client_ids = {answer.client_id for answer in answers}
        super().__init__(tx, snapshot, client_ids)
        snapshot.read_accounts(tx, client_ids)
        self._rules = self._task.spec.round_rules()
        self._new: dict[str, Budget] = {}

    def receipt(self, answer: BudgetAnswer) -> BudgetReceipt:
        """The first receipt of a repeated answer, or the receipt of a new one. Raises `RequestRefused`."""
        client = self._snapshot.clients.get(answer.client_id)
        if client is None or client.revoked_at is not None:
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        wanted = _budget_of(self._task.spec, answer)
        known = self._current_answer(client.client_id)
        if known is not None and _same_answer(known, wanted):
            return self._receipt_of(known)
        round_ = self._open_round()
        wanted = replace(wanted, attempt=round_.attempt)
        self._require_invited(client.client_id)
        if known is not None:
            wanted = self._withdrawal(known, wanted)
        elif answer.at > round_.declare_by:
            raise RequestRefused(ErrorCode.ROUND_CLOSED, "the time to declare a budget is over")
        if wanted.state is BudgetState.DECLARED:
            self._require_affordable(client, wanted.rho)
        self._new[client.client_id] = wanted
        self._snapshot.add_budget(wanted)
        return self._receipt_of(wanted)

    def _receipt_of(self, budget: Budget) -> BudgetReceipt:
        return BudgetReceipt(
            round_number=self._round_number,
            client_id=budget.client_id,
            state=budget.state.value,
            rho=budget.rho if budget.rho > 0 else None,
            payment_micro=self._promise(budget),
            recorded_at=as_datetime(budget.recorded_at),
        )

    def _promise(self, budget: Budget) -> int | None:
        """What a declared budget earns, where the market fixes it."""
        round_ = self._snapshot.round_
        if round_ is None or budget.state is not BudgetState.DECLARED:
            return None
        base = self._snapshot.invitations[budget.client_id].expected_rho
        terms = Terms(reward_micro=round_.reward_micro, total=round_.total, limit=math.inf, base=base)
        return self._rules.design.payment(terms, budget.rho)

    def _current_answer(self, client_id: str) -> Budget | None:
        """The answer of a client, unless it declined an earlier attempt and may answer this one."""
        known = self._snapshot.budgets.get(client_id)
        if known is None or known.state is not BudgetState.DECLINED or known.withdrawn:
            return known
        round_ = self._snapshot.round_
        if round_ is None or round_.state is not RoundState.OPEN or self._task.ended:
            return known
        return None if known.attempt < round_.attempt else known

    def record(self) -> None:
        """Write all new answers."""
        if not self._new:
            return
        self._tx.rounds.put_budget(self._open_round(), *self._new.values())
        # After a declaration the round waits at least for the update of this client.
        if all(budget.state is BudgetState.DECLINED for budget in self._new.values()):
            self._wake_when_complete(max(budget.recorded_at for budget in self._new.values()))
        for _ in self._new:
            failpoint("declare.before_commit")

    def _withdrawal(self, known: Budget, wanted: Budget) -> Budget:
        """The decline that may follow a declaration until the update is stored."""
        if not (known.state is BudgetState.DECLARED and wanted.state is BudgetState.DECLINED):
            raise RequestRefused(ErrorCode.BUDGET_DECLARED, f"the answer is already {known.state}")
        if known.client_id in self._snapshot.updates:
            raise RequestRefused(ErrorCode.UPDATE_EXISTS, "the update is already stored: its budget is spent")
        return replace(wanted, rho=known.rho)

    def _require_affordable(self, client: Client, rho: float) -> None:
        smallest = self._task.spec.bounds.rho_min
        largest = self._rules.cap(participant(self._task.spec, client, self._snapshot.accounts[client.client_id]))
        limit = self._snapshot.invitations[client.client_id].rho_limit
        largest = largest if limit is None else min(largest, limit)
        # Where each budget has a price of its own, payments add up to the reward only without a tolerance.
        slack = 0.0 if self._rules.design.fixes_payments else _TOLERANCE
        if not smallest * (1 - _TOLERANCE) <= rho <= largest * (1 + slack):
            raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"rho must lie in [{smallest!r}, {largest!r}] in this round")


class UploadBatch(_Batch):
    """Serves uploads to one round, in their order."""

    def __init__(self, tx: Transaction, snapshot: RoundSnapshot, deliveries: Sequence[Delivery]) -> None:
        super().__init__(tx, snapshot, {delivery.client_id for delivery in deliveries})
        self._digests: set[str] = set()
        # Without noise two clients may send the same bytes.
        if self._task.spec.privacy.noise:
            digests = {delivery.digest for delivery in deliveries}
            self._digests = tx.rounds.known_digests(self._task.task_id, digests)
        self._new: list[Update] = []

    def known_receipt(self, delivery: Delivery) -> UpdateReceipt | None:
        """The first receipt of a repeated upload; None for a new one to accept. Raises `RequestRefused`."""
        known = self._snapshot.updates.get(delivery.client_id)
        if known is not None:
            if known.digest != delivery.digest:
                raise RequestRefused(ErrorCode.UPDATE_EXISTS, "another update of this client is stored for this round")
            return _update_receipt(self._round_number, known)
        if delivery.at > self._open_round().deliver_by:
            raise RequestRefused(ErrorCode.ROUND_CLOSED, "the time to deliver is over")
        budget = self._snapshot.budgets.get(delivery.client_id)
        if budget is None or budget.state is BudgetState.DECLINED:
            self._require_invited(delivery.client_id)
            raise RequestRefused(ErrorCode.BUDGET_MISSING, "no budget is declared for this round")
        if delivery.digest in self._digests:
            raise RequestRefused(ErrorCode.UPDATE_REPLAYED, "these bytes are known from another round or client")
        return None

    def accept(self, delivery: StagedDelivery) -> UpdateReceipt:
        """Publish the bytes of a new upload. It counts once it is recorded. Raises `RequestRefused` or OSError."""
        if self._snapshot.clients[delivery.client_id].revoked_at is not None:
            # The operator has revoked the client while its body was read.
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        self._require_possible(delivery)
        new = Update(
            client_id=delivery.client_id,
            digest=delivery.digest,
            byte_length=delivery.blob.byte_length,
            squared_norm=delivery.squared_norm,
            received_at=delivery.at,
        )
        self._tx.publish(delivery.blob)
        self._new.append(new)
        self._snapshot.add_update(new)
        if self._task.spec.privacy.noise:
            self._digests.add(new.digest)
        return _update_receipt(self._round_number, new)

    def record(self) -> None:
        """Write all accepted uploads."""
        if not self._new:
            return
        self._tx.rounds.insert_update(self._open_round(), *self._new)
        self._wake_when_complete(max(update.received_at for update in self._new))
        for _ in self._new:
            failpoint("upload.before_commit")

    def _require_possible(self, delivery: StagedDelivery) -> None:
        """Refuse a vector whose norm neither signal nor noise explains: a single one can spoil the model."""
        spec, rho = self._task.spec, self._snapshot.budgets[delivery.client_id].rho
        size = self._snapshot.clients[delivery.client_id].size
        assert size is not None
        largest = largest_norm(spec.privacy.mechanism.build(), size=size, rho=rho, dimension=spec.dimension)
        if math.sqrt(delivery.squared_norm) > largest:
            raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"the norm of the vector is above {largest:.6g}")


def largest_norm(mechanism: Mechanism, *, size: int, rho: float, dimension: int) -> float:
    """The largest norm that the server accepts, far above that of any honest upload. Rho 0 means no noise."""
    signal = mechanism.signal_bound(size=size)
    if rho == 0:
        return _NORM_FACTOR * signal
    return signal + _NORM_FACTOR * mechanism.noise_std(rho=rho, size=size) * math.sqrt(dimension)


def _budget_of(spec: TaskSpec, answer: BudgetAnswer) -> Budget:
    request = answer.request
    if isinstance(request, Decline):
        state, rho, reason = BudgetState.DECLINED, 0.0, request.reason
    elif (spec.game.policy == RewardPolicy.NONE) == isinstance(request, Declaration):
        expected = "{join: true}" if spec.game.policy == RewardPolicy.NONE else "{rho: ...}"
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"under policy {spec.game.policy} the answer is {expected}")
    elif isinstance(request, Declaration):
        state, rho, reason = BudgetState.DECLARED, request.rho, None
    else:
        state, rho, reason = BudgetState.JOINED, 0.0, None
    return Budget(client_id=answer.client_id, state=state, rho=rho, reason=reason, recorded_at=answer.at)


def _same_answer(known: Budget, wanted: Budget) -> bool:
    if known.state is not wanted.state:
        return False
    return known.state is BudgetState.DECLINED or known.rho == wanted.rho


def _update_receipt(round_number: int, update: Update) -> UpdateReceipt:
    return UpdateReceipt(
        round_number=round_number,
        client_id=update.client_id,
        digest=update.digest,
        byte_length=update.byte_length,
        received_at=as_datetime(update.received_at),
    )
