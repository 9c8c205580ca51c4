"""Coordinators that break a rule on purpose, and die where that matters. The fault tests must notice them."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qidpfl_server.api.routes import rounds as routes
from qidpfl_server.domain import Payment, Round
from qidpfl_server.service.rounds.submissions import StagedDelivery, accept_updates
from qidpfl_server.store.blobs import StagedBlob
from qidpfl_server.store.repositories.payments import PaymentRows
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.messages import UpdateReceipt


def acknowledge_uploads_before_the_commit() -> None:
    """Acknowledge an upload, then die before the commit."""
    commit = Store._commit
    waiting: list[Any] = []

    def hasty(
        tx: Transaction, task_id: str, round_number: int, deliveries: Sequence[StagedDelivery]
    ) -> list[UpdateReceipt | Exception]:
        receipts = accept_updates(tx, task_id, round_number, deliveries)
        if tx.published:
            for delivery, receipt in zip(deliveries, receipts, strict=True):
                if not isinstance(receipt, Exception):
                    next(request.answer for request in waiting if request.item is delivery).set_result(receipt)
            time.sleep(2)
            _die()
        return receipts

    def remembering(self: Store, requests: list[Any]) -> None:
        waiting[:] = requests
        commit(self, requests)

    vars(routes)["accept_updates"] = hasty
    Store._commit = remembering  # type: ignore[method-assign]


def pay_in_a_second_transaction() -> None:
    """Settle a round and pay in a second transaction; die in between."""
    write = Store.write
    owed: list[Mapping[str, Payment]] = []

    def later(self: PaymentRows, known: Round, amounts: Mapping[str, Payment]) -> None:
        owed.append(amounts)

    def in_two_steps(self: Store, work: Callable[[Transaction], Any]) -> Any:
        result = write(self, work)
        if owed:
            _die()
        return result

    PaymentRows.pay = later  # type: ignore[method-assign,assignment]
    Store.write = in_two_steps  # type: ignore[method-assign]


def name_blobs_after_the_commit() -> None:
    """Commit the row of an upload, and die before its bytes are renamed into place."""

    def later(self: Transaction, blob: StagedBlob) -> None:
        """Do nothing."""

    Transaction.publish = later  # type: ignore[method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
