"""Whether a client takes an offer, and with which budget: a pure function of the offer, the task and the owner."""

from dataclasses import dataclass
from enum import StrEnum

from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.core.utility import training_cost
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..owner import Owner

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bid:
    """Take part with budget `rho`, 0 if the task has no game. Amounts assume that all bid as planned."""

    rho: float
    payment: float = 0.0
    utility: float = 0.0


class DeclineCode(StrEnum):
    """What the coordinator learns of a decline. Amounts, times and what was spent elsewhere stay with the owner."""

    NOT_WORTH_IT = "not_worth_it"
    PRICED_OUT = "priced_out"
    OWNER_LIMIT = "owner_limit"
    TOO_LATE = "too_late"


@dataclass(frozen=True)
class NoBid:
    """Do not take part. The owner reads the reason; the coordinator gets the code, or nothing if there is none."""

    reason: str
    code: DeclineCode | None = None


def terms_of(offer: RoundOffer) -> Terms:
    """What an announcement offers to this client."""
    return Terms(reward_micro=offer.reward_micro, total=offer.total, limit=offer.rho_max, base=offer.base_rho)


def decide(
    *, offer: RoundOffer, spec: TaskSpec, owner: Owner, remaining_rho: float, fixed_cost: float = 0.0
) -> Bid | NoBid:
    """The best answer in the market of the task within the owner's limits, if its utility is high enough."""
    if offer.standing is not Standing.INVITED:
        return NoBid(f"not invited: {offer.standing}")
    if spec.game.policy is RewardPolicy.NONE:
        return Bid(rho=0.0) if -fixed_cost >= owner.min_utility else _not_worth_it(-fixed_cost, owner)
    limits = (offer.rho_max, remaining_rho, owner.rho_cap)
    best = spec.design.answer(terms_of(offer), privacy_value=owner.privacy_value, cap=min(limits))
    rho, payment = best.rho, best.payment
    if rho < spec.bounds.rho_min:
        return _too_little(rho, remaining_rho, spec.bounds.rho_min)
    cost = training_cost(
        rho=rho, privacy_value=owner.privacy_value, privacy_weight=spec.game.privacy_weight, fixed=fixed_cost
    )
    utility = payment - cost
    # At a price that equals the value the utility is 0, up to rounding: of numbers, and of payments to micro-units.
    if utility < owner.min_utility - max(_ROUNDING * payment, 1 / MICRO):
        return _not_worth_it(utility, owner)
    return Bid(rho=rho, payment=payment, utility=utility)


def _not_worth_it(utility: float, owner: Owner) -> NoBid:
    reason = f"not worth it: utility {utility:.4g} is below {owner.min_utility:.4g}"
    return NoBid(reason, DeclineCode.NOT_WORTH_IT)


def _too_little(rho: float, remaining_rho: float, smallest: float) -> NoBid:
    if remaining_rho < smallest:
        return NoBid(
            "lifetime budget exhausted: qidpfl-client ledger shows it, ledger raise --lifetime-rho allows more",
            DeclineCode.OWNER_LIMIT,
        )
    if rho == 0:
        return NoBid("priced out: the reward does not pay for this privacy", DeclineCode.PRICED_OUT)
    # The same code as above: which of the owner's limits is reached depends on other tasks.
    reason = f"the best budget {rho:.4g} is below the task's smallest, {smallest:.4g}"
    return NoBid(reason, DeclineCode.OWNER_LIMIT)
