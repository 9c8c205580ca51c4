"""Updates on their way in: looked up before their bytes are read, recorded when these are durable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from qidpfl_shared.core.privacy.mechanisms import Mechanism
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import UpdateReceipt

from ..clock import Micros, as_datetime
from ..domain import BudgetState, Client, Task, Update
from ..errors import CoordinatorError, RequestRefused
from ..store.blobs import StagedBlob
from ..store.transaction import Transaction
from .desk import Desk, wake_when_complete
from .lifecycle import get_task_for_update

# Three times the noise is for the audit to judge, a hundred times for nobody.
_GENEROSITY = 10


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Whose bytes come for a round, and when."""

    client_id: str
    digest: str
    at: Micros


@dataclass(frozen=True, kw_only=True)
class StagedDelivery(Delivery):
    """One whose bytes are durable, and only lack their name."""

    blob: StagedBlob
    squared_norm: float


def first_receipts(
    tx: Transaction, task_id: str, round_number: int, deliveries: Sequence[Delivery]
) -> list[UpdateReceipt | Exception | None]:
    """Look uploads up before their bodies are read: the receipt of a known one, None where it would be taken now."""
    task = tx.tasks.get(task_id)
    assert task is not None
    counter = _Counter(tx, task, round_number, deliveries)
    outcomes: list[UpdateReceipt | Exception | None] = []
    for delivery in deliveries:
        try:
            outcomes.append(counter.known(delivery))
        except RequestRefused as refusal:
            outcomes.append(refusal)
    return outcomes


def accept_updates(
    tx: Transaction, task_id: str, round_number: int, deliveries: Sequence[StagedDelivery]
) -> list[UpdateReceipt | Exception]:
    """Record staged uploads and publish their bytes, in one transaction; those refused harm nobody else."""
    counter = _Counter(tx, get_task_for_update(tx, task_id), round_number, deliveries)
    outcomes: list[UpdateReceipt | Exception] = []
    for delivery in deliveries:
        try:
            outcomes.append(counter.known(delivery) or counter.take(delivery))
        except (CoordinatorError, OSError) as error:
            outcomes.append(error)
    counter.record()
    return outcomes


class _Counter:
    """Serves deliveries one after the other, each after what the others before it have left."""

    def __init__(self, tx: Transaction, task: Task, round_number: int, deliveries: Sequence[Delivery]) -> None:
        self._tx = tx
        self._client_ids = {delivery.client_id for delivery in deliveries}
        self._desk = Desk(tx, task, round_number, self._client_ids)
        self._digests: set[str] = set()
        # Without noise two clients may well send the same bytes.
        if task.spec.privacy.noise:
            self._digests = tx.rounds.known_digests(task.task_id, {delivery.digest for delivery in deliveries})
        self._new: list[Update] = []

    def known(self, delivery: Delivery) -> UpdateReceipt | None:
        """The first receipt of a known upload; None for a new one that may be taken."""
        desk = self._desk
        known = desk.updates.get(delivery.client_id)
        if known is not None:
            if known.digest != delivery.digest:
                raise RequestRefused(ErrorCode.UPDATE_EXISTS, "another update of this client is stored for this round")
            return _receipt(desk.round_number, known)
        if delivery.at > desk.open_round().deliver_by:
            raise RequestRefused(ErrorCode.ROUND_CLOSED, "the time to deliver is over")
        budget = desk.budgets.get(delivery.client_id)
        if budget is None or budget.state is BudgetState.DECLINED:
            desk.require_invitation(delivery.client_id)
            raise RequestRefused(ErrorCode.BUDGET_MISSING, "no budget is declared for this round")
        if delivery.digest in self._digests:
            raise RequestRefused(ErrorCode.UPDATE_REPLAYED, "these bytes are known from another round or client")
        return None

    def take(self, delivery: StagedDelivery) -> UpdateReceipt:
        """Publish the bytes of a new upload; it counts once it is recorded."""
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
        self._desk.updates[new.client_id] = new
        if self._desk.task.spec.privacy.noise:
            self._digests.add(new.digest)
        return _receipt(self._desk.round_number, new)

    def _require_possible(self, delivery: StagedDelivery) -> None:
        """Refuse a vector that no signal and no noise of this client can explain: one of them spoils the model."""
        spec, rho = self._desk.task.spec, self._desk.budgets[delivery.client_id].rho
        size = self._clients[delivery.client_id].size
        assert size is not None
        largest = largest_norm(spec.privacy.mechanism.build(), size=size, rho=rho, dimension=spec.dimension)
        if math.sqrt(delivery.squared_norm) > largest:
            raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"the norm of the vector is above {largest:.6g}")

    @cached_property
    def _clients(self) -> dict[str, Client]:
        """Read only when asked for: a look before the bytes are there does not need them."""
        return self._tx.clients.some(self._client_ids)

    def record(self) -> None:
        """Write down everything that was taken."""
        if not self._new:
            return
        round_ = self._desk.open_round()
        self._tx.rounds.insert_update(round_, *self._new)
        wake_when_complete(self._tx, round_, max(update.received_at for update in self._new))
        for _ in self._new:
            failpoint("upload.before_commit")


def largest_norm(mechanism: Mechanism, *, size: int, rho: float, dimension: int) -> float:
    """A norm that no honest upload comes near; whether the noise is right is the audit's question. Rho 0: no noise."""
    signal = mechanism.signal_bound(size=size)
    if rho == 0:
        return _GENEROSITY * signal
    return signal + _GENEROSITY * mechanism.noise_std(rho=rho, size=size) * math.sqrt(dimension)


def _receipt(round_number: int, update: Update) -> UpdateReceipt:
    return UpdateReceipt(
        round_number=round_number,
        client_id=update.client_id,
        digest=update.digest,
        byte_length=update.byte_length,
        received_at=as_datetime(update.received_at),
    )
