"""The checks of a client against a curious or hostile coordinator.

The client pins the spec of the task by its digest at enrolment. Every announcement must agree with the spec, and with
earlier announcements of the same round.
"""

import math

from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.layouts import DATA_SETS
from qidpfl_shared.protocol.ledger import LedgerEntry, SpendState
from qidpfl_shared.protocol.mechanism_specs import BoltOn
from qidpfl_shared.protocol.messages import BudgetReceipt, RoundOffer, RoundResult
from qidpfl_shared.protocol.releases import round_of
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import OwnerLimit, UntrustedCoordinator
from ..journal.journal import PROVEN_DEVICES, Entry, SeenOffer
from .bidding import terms_of


def check_common_noise(*, spec: TaskSpec, accept_unproven: bool) -> None:
    """Refuse noise that other tasks have too, unless the data are a shard of a built-in data set.

    Whoever sees two uploads with the same noise subtracts them: own data would be unprotected in all these tasks.
    """
    if spec.data is not None or spec.workload.partition is None or spec.workload.dataset not in DATA_SETS:
        raise OwnerLimit(
            "common noise is for the built-in data sets of a testbed only: two tasks with the same noise reveal the"
            f" difference of their updates, and the data of {spec.workload.dataset!r} may be real"
        )
    if not accept_unproven:
        raise OwnerLimit("common noise protects nothing (--accept-unproven takes part anyway)")


def check_spec(*, spec: TaskSpec, digest: str) -> None:
    """Refuse a spec that is not the pinned one."""
    if spec.digest != digest:
        raise UntrustedCoordinator("the coordinator shows a spec with another digest than the pinned one")


def check_acceptable(*, spec: TaskSpec, accept_unproven: bool) -> None:
    """Refuse a task whose releases guarantee less than they declare, unless the owner accepts that."""
    if accept_unproven:
        return
    mechanism = spec.privacy.mechanism.build()
    if not spec.privacy.noise:
        raise OwnerLimit("the task uses no noise: its releases are unprotected (--accept-unproven takes part anyway)")
    if mechanism.heuristic:
        raise OwnerLimit(
            f"{mechanism.name} is heuristic noise, no privacy guarantee (--accept-unproven takes part anyway)"
        )


def check_device(*, device_type: str, accept_unproven: bool) -> None:
    """Refuse a device on which no release is proven, unless the owner accepts that."""
    if device_type not in PROVEN_DEVICES and not accept_unproven:
        raise OwnerLimit(
            f"releases computed on {device_type} are heuristic: the proofs do not cover its rounding; use --device cpu"
            " (--accept-unproven takes part anyway)"
        )


def check_claim(*, claimed: bool, accept_unproven: bool) -> None:
    """Refuse noise that the owner's program adds by itself, unless the owner accepts that it is only claimed."""
    if claimed and not accept_unproven:
        raise OwnerLimit(
            "the guarantee of noise that your program adds is only claimed: the client cannot check it; let the client"
            " clip and add the noise (--accept-unproven takes part anyway)"
        )


def check_offer(*, offer: RoundOffer, spec: TaskSpec, latest: SeenOffer | None) -> None:
    """Refuse an announcement that contradicts the pinned spec or the latest announced round.

    docs/clients.md has the same checks as a table.
    """
    mechanism = spec.privacy.mechanism
    agreed = {
        "mechanism": (offer.mechanism.value, mechanism.name),
        "clip norm": (offer.clip_norm, None if isinstance(mechanism, BoltOn) else mechanism.clip_norm),
        "dimension": (offer.dimension, spec.dimension),
        "largest budget": (offer.rho_max, _largest_budget(offer, spec)),
        "noise": (offer.noise, spec.privacy.noise),
        "model version": (offer.model_version, offer.round_number - 1),
    }
    for what, (said, expected) in agreed.items():
        if said != expected:
            raise UntrustedCoordinator(f"round {offer.round_number} announces {what} {said}, the task says {expected}")
    if offer.reward_micro > spec.bounds.reward_max_micro:
        raise UntrustedCoordinator(f"round {offer.round_number} announces more reward than the task may pay")
    if offer.round_number > spec.game.horizon:
        raise UntrustedCoordinator(f"round {offer.round_number} is beyond the task's {spec.game.horizon} rounds")
    if offer.attempt > spec.rounds.max_attempts:
        raise UntrustedCoordinator(f"round {offer.round_number} is beyond its {spec.rounds.max_attempts} attempts")
    if latest is not None:
        _check_order(SeenOffer.of(offer), latest)


def _largest_budget(offer: RoundOffer, spec: TaskSpec) -> float:
    """The largest budget that an announcement may name: never above that of the spec.

    In a task of release 0.1.0 without a defence it must be that of the spec.
    """
    exact = spec.defence is None and spec.protocol_version is None
    return spec.bounds.rho_max if exact else min(offer.rho_max, spec.bounds.rho_max)


def check_terms(*, offer: RoundOffer, spec: TaskSpec, privacy_value: float) -> None:
    """Refuse terms that contradict the market of the task. `privacy_value` is the reported one."""
    if offer.standing is not Standing.INVITED or spec.game.policy is RewardPolicy.NONE:
        return
    refusal = spec.design.refusal(terms_of(offer), privacy_value=privacy_value)
    if refusal is not None:
        raise UntrustedCoordinator(f"round {offer.round_number} announces {refusal}")


def check_promise(*, receipt: BudgetReceipt, offer: RoundOffer, spec: TaskSpec, rho: float) -> None:
    """Refuse the receipt of a budget that promises another payment than the market fixes."""
    due = spec.design.payment(terms_of(offer), rho) if rho > 0 else None
    if due is not None and receipt.payment_micro != due:
        promised = "none" if receipt.payment_micro is None else f"{from_micro(receipt.payment_micro):.6f}"
        raise UntrustedCoordinator(
            f"round {offer.round_number} promises a payment of {promised}, but market {spec.market} pays"
            f" {from_micro(due):.6f} for rho {rho:.6g}"
        )


def check_result(*, result: RoundResult, announced: SeenOffer | None, spec: TaskSpec, rho: float) -> None:
    """Check the payment of a closed round for a delivered update of the budget `rho`."""
    part = result.own
    payment, escrow = (0, 0) if part is None else (part.payment_micro, part.escrow_micro or 0)
    check_payment(
        round_number=result.round_number,
        payment_micro=payment,
        announced=announced,
        spec=spec,
        earned_micro=payment + escrow if part is not None and part.accepted else None,
        rho=rho,
    )


def check_payment(
    *,
    round_number: int,
    payment_micro: int,
    announced: SeenOffer | None,
    spec: TaskSpec,
    earned_micro: int | None = None,
    rho: float = 0.0,
) -> None:
    """Refuse a payment above the reward of the round, or above that of any round if this one was not announced.

    `earned_micro` is what the accepted update of the budget `rho` has earned, with its escrow. Where the market fixes
    it, any other amount is refused too.
    """
    reward = spec.bounds.reward_max_micro if announced is None else announced.reward_micro
    if payment_micro > reward:
        paid, most = f"{from_micro(payment_micro):.6f}", f"{from_micro(reward):.6f}"
        raise UntrustedCoordinator(f"round {round_number} is paid {paid}, more than its reward {most}")
    if earned_micro is None or announced is None or rho == 0:
        return
    terms = Terms(reward_micro=announced.reward_micro, total=announced.total, limit=math.inf, base=announced.base_rho)
    due = spec.design.payment(terms, rho)
    if due is not None and due != earned_micro:
        raise UntrustedCoordinator(
            f"round {round_number} is paid {from_micro(earned_micro):.6f}, but market {spec.market} pays"
            f" {from_micro(due):.6f} for rho {rho:.6g}"
        )


def _check_order(offer: SeenOffer, latest: SeenOffer) -> None:
    if offer.round_number < latest.round_number:
        raise UntrustedCoordinator(f"round {offer.round_number} is announced again after round {latest.round_number}")
    if offer.round_number == latest.round_number and offer != latest:
        raise UntrustedCoordinator(f"round {offer.round_number} is announced again with another model or reward")


def refusal_of_claim(theirs: LedgerEntry, known: Entry | None) -> str | None:
    """Why a release in the coordinator's ledger cannot be one of this journal; None if it can.

    `known` is the journal's entry of that release. The client never charges what only the coordinator says.
    """
    if round_of(theirs.release) is None or theirs.digest is None:
        return "which no client releases"
    if known is None:
        return "which this journal has never made"
    if known.state is SpendState.FREED:
        return "which this journal has cancelled before anything was sent"
    if known.state is SpendState.RESERVED:
        return None if theirs.rho == known.rho else f"but this journal has reserved rho {known.rho:g}"
    return None if known.digest == theirs.digest else "with other bytes than this journal has sent"
