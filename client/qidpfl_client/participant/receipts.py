"""Checks every signed answer of the coordinator and keeps it in the journal.

The client pins the key of the enrolment answer. A coordinator of an earlier version signs nothing: then there is
nothing to check, unless the journal has pinned a key.
"""

from dataclasses import dataclass

from qidpfl_shared.protocol.signatures import SignedMessage, WrongSignature, key_id_of, successors

from ..errors import UntrustedCoordinator
from ..journal.receipts import KeptReceipts
from ..sdk.client import TaskApi


@dataclass(frozen=True, kw_only=True)
class ReceiptKeeper:
    """Keeps the signed messages of one task."""

    api: TaskApi
    kept: KeptReceipts

    def keep(self, message: SignedMessage, *, round_number: int = 0, attempt: int = 0) -> None:
        """Check and keep a message.

        Raises:
            UntrustedCoordinator: it is not signed although a key is pinned, its signature is wrong, or its place in the
                chain contradicts what the journal has kept.
        """
        pinned = self.kept.pinned(self.api.task_id)
        if message.signature is None or message.chain is None:
            if pinned:
                raise UntrustedCoordinator(
                    f"the coordinator has not signed its answer ({message.kind}), but this journal has pinned its key"
                    f" {list(pinned)[-1]}"
                )
            return
        if message.chain.task_id != self.api.task_id:
            raise UntrustedCoordinator(f"the {message.kind} of the coordinator is signed for another task")
        if message.signature.key_id not in pinned:
            self._pin_others(list(pinned.values()))
        self.kept.keep(message, round_number=round_number, attempt=attempt)

    def pin(self, public_key: str | None) -> None:
        """Pin the key of the enrolment answer, unless a key is pinned already."""
        if public_key is not None and not self.kept.pinned(self.api.task_id):
            self.kept.pin(self.api.task_id, key_id_of(public_key), public_key)

    def _pin_others(self, pinned: list[str]) -> None:
        """Pin the keys that have replaced the pinned one, each endorsed by the one before.

        A journal that joined the task before its coordinator signed anything pins the key that it sees first.
        """
        keys = self.api.keys()
        try:
            for key in successors(pinned[-1], keys) if pinned else keys.keys[-1:]:
                if key.key_id != key_id_of(key.public_key):
                    raise WrongSignature("a key has the id of another")
                self.kept.pin(self.api.task_id, key.key_id, key.public_key)
        except ValueError as error:
            raise UntrustedCoordinator(
                f"the coordinator signs with another key than the pinned one: {error}"
            ) from error
