"""The messages about a client's account: what it has released, what that guarantees, and what it was paid."""

from enum import StrEnum

from pydantic import Field

from .fields import Choice, Digest, Message, Micro, Name, SpentRho, Text, Tuple, is_absent


class SpendState(StrEnum):
    """The state of a budget: reserved at the declaration, spent when the update was stored, freed if none was.

    `spent_unpaid`: without a payment. That includes an update which the coordinator has read and answered with 410. One
    that it answered with another 4xx is freed here; the client's own account still counts it.
    """

    RESERVED = "reserved"
    SPENT = "spent"
    SPENT_UNPAID = "spent_unpaid"
    FREED = "freed"


class LedgerEntry(Message):
    """One release of a client: the declared budget, the proven budget and the payment."""

    release: Name = Field(description="`histogram`, or the round as `round/3`")
    mechanism: Text = Field(
        description="with the word `heuristic` or `unprotected` if it guarantees less than declared"
    )
    state: Choice[SpendState]
    rho: SpentRho = Field(description="declared")
    proven_rho: SpentRho | None = Field(description="guaranteed; null: unprotected")
    digest: Digest | None = None
    payment_micro: Micro | None = None
    escrow_micro: Micro | None = Field(default=None, exclude_if=is_absent, description="held back until the task ends")


class Ledger(Message):
    """The account of one client in a task."""

    client_id: Name
    entries: Tuple[LedgerEntry]
    spent_rho: SpentRho | None = Field(description="null: at least one release is unprotected")
    epsilon: float | None = Field(
        ge=0, description="of the spent budget at delta, by the formula of the contract; null: unprotected"
    )
    delta: float = Field(gt=0, lt=1)
    earned_micro: Micro
    escrow_micro: Micro | None = Field(
        default=None, exclude_if=is_absent, description="what the rounds have held back in all"
    )
    released_micro: Micro | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the escrow that was paid at the end, part of earned_micro; 0: the operator revoked the client",
    )
