"""What one client would earn, spend and risk in a task, by the privacy value that it reports."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .. import arguments
from ..money import MICRO
from ..privacy.conversion import epsilon_from_rho
from ..round_rules import Participant, RoundRules
from ..utility import training_cost
from .play import PlanOfRound, plan_of_task, play_task

# The reports of a quote, as multiples of the client's own privacy value.
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)


@dataclass(frozen=True, kw_only=True)
class Quote:
    """The whole task on paper, if the client reports this value and all clients bid as planned.

    `rounds` are those to which the client is invited with a budget. `rho` and `epsilon` are what it reveals, with its
    histogram. `cost` is what the revealed budget of the updates is worth to it, at its true value, and `utility` the
    earnings minus that.
    """

    reported_value: float
    rounds: int
    earned: float
    rho: float
    epsilon: float
    cost: float
    utility: float


def quotes(
    *,
    rules: RoundRules,
    own: Participant,
    others: Sequence[Participant],
    rounds: int,
    delta: float,
    histogram_rho: float = 0.0,
    factors: Sequence[float] = FACTORS,
    plan: PlanOfRound = plan_of_task,
) -> list[Quote]:
    """Return one quote per factor of the client's privacy value. The others report the same in all of them.

    >>> from qidpfl_shared.protocol.presets import preset
    >>> others = [Participant(privacy_value=value, size=110) for value in (0.95, 1.0, 1.05)]
    >>> own = Participant(privacy_value=1.0, size=110)
    >>> low, true = quotes(
    ...     rules=preset("digits").round_rules(), own=own, others=others, rounds=1, delta=1e-5, factors=(0.9, 1.0)
    ... )
    >>> round(true.earned, 2), round(true.epsilon, 2), low.earned > true.earned
    (3.89, 1.88, True)
    """
    histogram = arguments.non_negative("histogram_rho", histogram_rho)
    found = []
    for factor in factors:
        value = arguments.positive("factor", factor) * own.privacy_value
        played = play_task(
            rules=rules, participants=[replace(own, privacy_value=value), *others], rounds=rounds, plan=plan
        )
        budgets = [float(one.budgets[0]) for one in played.rounds]
        spent = sum(budgets)
        cost = (
            training_cost(rho=spent, privacy_value=own.privacy_value, privacy_weight=rules.privacy_weight)
            if spent
            else 0.0
        )
        earned = played.earned(0) / MICRO
        rho = spent + histogram
        found.append(
            Quote(
                reported_value=value,
                rounds=sum(budget > 0 for budget in budgets),
                earned=earned,
                rho=rho,
                epsilon=epsilon_from_rho(rho=rho, delta=delta) if rho > 0 else 0.0,
                cost=cost,
                utility=earned - cost,
            )
        )
    return found
