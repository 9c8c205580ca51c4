"""What does it cost? The rewards of a task are multiplied by one factor, and the answer is the factor that fits.

The factor changes all rewards together and so keeps the schedule of the task's policy. More money means larger budgets,
less noise and a larger ε, so each question has one answer. The planner answers only where the accuracy curve was
calibrated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument
from ..money import MICRO, from_micro
from ..planning import PlanStatus
from ..privacy.conversion import epsilon_from_rho
from ..reward import RewardPolicy
from ..round_rules import Participant, RoundRules
from .noise_curve import NoiseCurve, Prediction
from .play import PlannedTask, PlanOfRound, plan_of_task, play_task, with_rewards

# The search ends when the factor is known to this relative precision.
_PRECISION = 1e-6
_STEP, _MOST_STEPS = 4.0, 12


class AnswerStatus(StrEnum):
    """Whether the planner has an answer; if not, the reason."""

    ANSWERED = "answered"
    OUTSIDE_CALIBRATION = "outside_calibration"
    OUT_OF_REACH = "out_of_reach"
    NO_MARKET = "no_market"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanningCase:
    """The task in question: its rules, its clients, the number of rounds, and what clients release besides updates.

    `plan` maps rules, participants and round to a plan: the market of the task.
    """

    rules: RoundRules
    participants: Sequence[Participant]
    rounds: int
    delta: float
    histogram_rho: float = 0.0
    plan: PlanOfRound = plan_of_task

    def __post_init__(self) -> None:
        arguments.whole("rounds", self.rounds, minimum=1)
        arguments.probability("delta", self.delta)
        arguments.non_negative("histogram_rho", self.histogram_rho)
        if self.rounds > self.rules.cost_model.horizon:
            horizon = self.rules.cost_model.horizon
            raise ImpossibleArgument("rounds", self.rounds, f"must not exceed the horizon of the task, {horizon}")
        if self.rules.policy in (RewardPolicy.NONE, RewardPolicy.OWN):
            requirement = "has no rewards that the planner could change; choose another policy"
            raise ImpossibleArgument("policy", self.rules.policy.value, requirement)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedOutcome:
    """A task on paper with all rewards multiplied by `factor`: what it pays, what it reveals, and how accurate it is.

    `worst_client` is the place of the client that reveals most. `accuracy` is None where the curve does not cover the
    noise, or without a curve.
    """

    factor: float
    played: PlannedTask
    worst_client: int
    worst_rho: float
    worst_epsilon: float
    accuracy: Prediction | None

    @property
    def money_micro(self) -> int:
        return self.played.money_micro

    @property
    def noise(self) -> float:
        return self.played.noise


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannerAnswer:
    """The outcome that fits a question, or the reason why there is none. `detail` is a sentence."""

    status: AnswerStatus
    outcome: PlannedOutcome | None = None
    detail: str = ""


@dataclass(kw_only=True, eq=False)
class Planner:
    """Answers questions about one scenario. It remembers the outcomes that it has computed."""

    scenario: PlanningCase
    curve: NoiseCurve | None = None
    _rewards: tuple[float, ...] | None = None
    _known: dict[float, PlannedOutcome] = field(default_factory=dict)

    def base(self) -> PlannerAnswer:
        """The task as it is, with the rewards of its own policy."""
        if not self._base_rewards():
            return PlannerAnswer(status=AnswerStatus.NO_MARKET, detail=self._no_market)
        return PlannerAnswer(status=AnswerStatus.ANSWERED, outcome=self.at(1.0))

    def at(self, factor: float) -> PlannedOutcome:
        """The task with all rewards multiplied by a factor. Raises `ImpossibleArgument` if it has no market."""
        factor = arguments.positive("factor", factor)
        if factor not in self._known:
            rewards = [factor * reward for reward in self._base_rewards()]
            if not rewards:
                raise ImpossibleArgument("scenario", self.scenario.rounds, self._no_market)
            self._known[factor] = self._outcome(factor, rewards)
        return self._known[factor]

    def for_accuracy(self, target: float) -> PlannerAnswer:
        """The least money with this expected accuracy."""
        if self.curve is None:
            return PlannerAnswer(status=AnswerStatus.OUTSIDE_CALIBRATION, detail="there is no calibration")
        noise = self.curve.noise_for(arguments.fraction("target", target))
        if noise is None:
            low, high = self.curve.accuracies
            detail = (
                f"accuracy {target:.4f} is outside what the calibration covers, {low:.4f} to {high:.4f}:"
                " calibrate with runs of other rewards"
            )
            return PlannerAnswer(status=AnswerStatus.OUTSIDE_CALIBRATION, detail=detail)
        answer = self._search(lambda outcome: -math.log(outcome.noise), -math.log(noise), "so little noise")
        if answer.outcome is None or answer.outcome.played.status is PlanStatus.PLANNED:
            return answer
        done = len(answer.outcome.played.rounds)
        detail = f"after {done} of {self.scenario.rounds} rounds too few clients have a budget left for this accuracy"
        return PlannerAnswer(status=AnswerStatus.OUT_OF_REACH, detail=detail)

    def for_money(self, money: float) -> PlannerAnswer:
        """The task that pays so much, in units of money."""
        wanted = arguments.positive("money", money)
        return self._search(lambda outcome: math.log(outcome.money_micro / MICRO), math.log(wanted), "so much money")

    def for_epsilon(self, epsilon: float) -> PlannerAnswer:
        """The task in which the client that reveals most has this ε."""
        wanted = arguments.positive("epsilon", epsilon)
        return self._search(lambda outcome: math.log(outcome.worst_epsilon), math.log(wanted), "such an epsilon")

    def frontier(self, points: int = 9) -> list[PlannedOutcome]:
        """Outcomes from the most to the least noise of the calibration, as far as the task can reach them."""
        arguments.whole("points", points, minimum=2)
        if self.curve is None or not self._base_rewards():
            return []
        noises = np.geomspace(self.curve.noise_max, self.curve.noise_min, points)
        answers = [
            self._search(lambda outcome: -math.log(outcome.noise), -math.log(float(noise)), "") for noise in noises
        ]
        return [answer.outcome for answer in answers if answer.outcome is not None]

    @property
    def _no_market(self) -> str:
        return "no round can be planned: too few clients can bid, or the rewards are 0"

    def _base_rewards(self) -> tuple[float, ...]:
        """The rewards of the task's own policy; empty if it has no market."""
        if self._rewards is None:
            one = self.scenario
            played = play_task(rules=one.rules, participants=one.participants, rounds=one.rounds, plan=one.plan)
            rewards = tuple(from_micro(round_.reward_micro) for round_ in played.rounds)
            # Budgets that are used up end the task early. The schedule goes on with the last reward.
            rewards += rewards[-1:] * (one.rounds - len(rewards))
            self._rewards = rewards if rewards and min(rewards) > 0 else ()
        return self._rewards

    def _outcome(self, factor: float, rewards: Sequence[float]) -> PlannedOutcome:
        one = self.scenario
        rules = with_rewards(one.rules, rewards)
        played = play_task(rules=rules, participants=one.participants, rounds=one.rounds, plan=one.plan)
        if not played.rounds:
            raise ImpossibleArgument("factor", factor, self._no_market)
        worst = int(np.argmax(played.spent))
        rho = float(played.spent[worst]) + one.histogram_rho
        noise, covered = played.noise, played.status is PlanStatus.PLANNED
        predicted = self.curve is not None and covered and self.curve.covers(noise)
        return PlannedOutcome(
            factor=factor,
            played=played,
            worst_client=worst,
            worst_rho=rho,
            worst_epsilon=epsilon_from_rho(rho=rho, delta=one.delta),
            accuracy=self.curve.predict(noise) if predicted and self.curve is not None else None,
        )

    def _search(self, measure: Callable[[PlannedOutcome], float], wanted: float, what: str) -> PlannerAnswer:
        """The outcome whose measure, which grows with the factor, has the wanted value."""
        if not self._base_rewards():
            return PlannerAnswer(status=AnswerStatus.NO_MARKET, detail=self._no_market)

        def excess(logarithm: float) -> float:
            return measure(self.at(math.exp(logarithm))) - wanted

        start = excess(0.0)
        sign = -1.0 if start > 0 else 1.0
        near, far, value = 0.0, 0.0, start
        for _ in range(_MOST_STEPS):
            if value * start <= 0 and far != near:
                break
            before = value
            near, far = far, far + sign * math.log(_STEP)
            try:
                value = excess(far)
            except ImpossibleArgument:
                return self._out_of_reach(near, what)
            if abs(value - before) < _PRECISION and value * start > 0:
                return self._out_of_reach(near, what)
        if value * start > 0:
            return self._out_of_reach(far, what)
        if start == 0:
            return PlannerAnswer(status=AnswerStatus.ANSWERED, outcome=self.at(1.0))
        # scipy.optimize takes longer to import than this package.
        from scipy.optimize import brentq

        low, high = sorted((near, far))
        found = float(brentq(excess, low, high, xtol=_PRECISION, rtol=_PRECISION))
        outcome = self.at(math.exp(found))
        # A measure that jumps over the wanted value has no answer: a client starts or stops to bid there.
        if abs(measure(outcome) - wanted) > 0.01:
            return self._out_of_reach(found, what)
        return PlannerAnswer(status=AnswerStatus.ANSWERED, outcome=outcome)

    def _out_of_reach(self, logarithm: float, what: str) -> PlannerAnswer:
        nearest = self.at(math.exp(logarithm))
        ceiling = from_micro(self.scenario.rules.reward_max_micro)
        detail = (
            f"the task cannot have {what}: with rewards of up to {ceiling:g} a round and the clients' limits it gets to"
            f" a noise of {nearest.noise:.4g}, money {from_micro(nearest.money_micro):.6g} and epsilon"
            f" {nearest.worst_epsilon:.4g}"
        )
        return PlannerAnswer(status=AnswerStatus.OUT_OF_REACH, detail=detail)
