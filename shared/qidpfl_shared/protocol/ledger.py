"""The messages about a client's budget: what it declares, what it has released and guarantees, and what it was paid."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from .fields import Choice, Digest, Message, Micro, Name, Rho, SpentRho, Text, Tuple, Yes, is_absent


class Declaration(Message):
    """The privacy budget that the client sells in this round."""

    rho: Rho


class Decline(Message):
    """The client does not take part in this round. Before the upload it can also withdraw a declaration, once."""

    decline: Yes
    reason: Text = Field(
        description="a code without amounts: not_worth_it, priced_out, owner_limit or too_late",
        examples=["owner_limit"],
    )


class Join(Message):
    """The client takes part in a round without a game (policy none)."""

    join: Yes


def _kind_of_answer(value: object) -> str:
    """The kind of an answer by its key, so that an error names the fields of this kind only."""
    if isinstance(value, Message):
        return type(value).__name__
    keys = value if isinstance(value, Mapping) else ()
    return "Decline" if "decline" in keys else "Join" if "join" in keys else "Declaration"


BudgetRequest = Annotated[
    Annotated[Declaration, Tag("Declaration")] | Annotated[Decline, Tag("Decline")] | Annotated[Join, Tag("Join")],
    Discriminator(_kind_of_answer),
]


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
