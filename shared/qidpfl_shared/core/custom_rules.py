"""Custom rules: what a user's function for rewards or selection receives, and the check of what it returns.

A rule must be deterministic and use its question only, because an audit calls it again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Mask, Vector
from .averaging.optimal_weights import LabelGaps
from .markets.contest import Contest
from .markets.design import MarketDesign
from .markets.schedules import RewardSchedule
from .reward import CostModel, Market, RewardRange, Weighting


class CustomRuleFailed(Exception):
    """A user's rule raised an error or returned an unusable value. The message shows none of its data."""


@dataclass(frozen=True, kw_only=True)
class PastRound:
    """A settled round: its reward, and the accuracy of its model on held-out records (None: not evaluated)."""

    reward: float
    accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RewardQuestion:
    """The argument of a custom `reward` function. Money is in units. Arrays are read-only: one entry per invitation.

    The server bounds the returned reward as for every policy: by the reward range, the largest reward of a round, and
    what is left of the total.

    >>> def reward(question: RewardQuestion) -> float:
    ...     return 10.0 if question.round_number == 1 else question.rewards[-1] * 1.1
    """

    round_number: int
    """The round that opens: 1, 2, … up to `horizon`."""
    past: tuple[PastRound, ...]
    """The earlier rounds in order."""
    privacy_values: Vector
    """What a unit of budget is worth to each client (ν).

    The reward must not depend on what the sellers of a truthful market report. In an auction this is the price for all
    of them, in a menu the largest value of the task.
    """
    sizes: Vector
    """The number of records of each client."""
    caps: Vector
    """The largest budget each client can declare in this round (ρ)."""
    noise_scales: Vector
    """The noise variance of each client's upload times its budget: variance = noise_scale / ρ."""
    weighting: Weighting
    """How the updates are averaged."""
    privacy_weight: float
    """Weight of the privacy cost in a client's utility (φ1)."""
    cost_model: CostModel
    """The constants of the server's cost."""
    reward_range: RewardRange
    """The rewards that are admissible; its maximum may be infinite."""
    reward_left: float
    """What the task may still pay in this and all later rounds. A larger reward ends the task."""
    max_share: float = 1.0
    """The largest part of the reward that one client may get."""
    labels: LabelGaps | None = None
    """With weighting `optimal`: how far the labels of each client are from the reference, and what that costs."""
    design: MarketDesign | None = None
    """The market of the task; None: the contest of the paper."""
    schedule: RewardSchedule | None = None
    """What replaces the paper's growth of the rewards."""

    @property
    def horizon(self) -> int:
        """The number of rounds of the task (T)."""
        return self.cost_model.horizon

    @property
    def accuracies(self) -> tuple[float | None, ...]:
        """The accuracy after each earlier round; None if it was not evaluated."""
        return tuple(past.accuracy for past in self.past)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of each earlier round."""
        return tuple(past.reward for past in self.past)

    def optimal_reward(self) -> float:
        """Return the reward of policy `optimal`: the one with the least cost for the server (Theorem 2, with caps)."""
        design = Contest(privacy_weight=self.privacy_weight) if self.design is None else self.design
        return design.optimal_reward(market=self.market, round_number=self.round_number, caps=self.caps)

    @property
    def market(self) -> Market:
        """The clients and the server's cost, as the core's functions take them."""
        return Market(
            cost_model=self.cost_model,
            weighting=self.weighting,
            privacy_weight=self.privacy_weight,
            privacy_values=self.privacy_values,
            sizes=self.sizes,
            noise_scales=self.noise_scales,
            max_share=self.max_share,
            labels=self.labels,
            schedule=self.schedule,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionQuestion:
    """The argument of a custom `select` function. Arrays are read-only, one entry or row per client with records.

    >>> def select(question: SelectionQuestion) -> list[bool]:
    ...     return [bool(size >= 100) for size in question.sizes]
    """

    label_counts: Vector
    """The reported number of records per label: clients x labels. Usually with noise."""
    label_distances: Vector
    """Each client's L1 distance to the reference, from 0 to 2."""
    reference: Vector
    """The reference distribution of labels; it adds up to 1."""
    sizes: Vector
    """The number of records of each client."""
    privacy_values: Vector
    """What a unit of budget is worth to each client (ν)."""
    min_clients: int
    """With fewer clients the task fails, or the nearest of the others are added."""

    @property
    def clients(self) -> int:
        """The number of clients to choose from."""
        return self.label_distances.size


Question = TypeVar("Question")
Answer = TypeVar("Answer")
CustomReward = Callable[[RewardQuestion], float]
CustomSelect = Callable[[SelectionQuestion], Sequence[bool] | Mask]


def read_only(array: Vector) -> Vector:
    """Return a read-only copy."""
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def ask_reward(rule: CustomReward, question: RewardQuestion) -> float:
    """Call a custom `reward` function. Raises `CustomRuleFailed` if it fails or its result is not finite or below 0."""
    answer = _answer("reward", rule, question)
    try:
        return arguments.non_negative("reward", answer)
    except ImpossibleArgument as error:
        raise CustomRuleFailed(f"reward() returned {_shown(answer)}, not a finite number of at least 0") from error


def ask_selection(rule: CustomSelect, question: SelectionQuestion) -> Mask:
    """Call a custom `select` function. Raises `CustomRuleFailed` if it fails or does not return one bool per client.

    >>> question = SelectionQuestion(
    ...     label_counts=np.array([[50.0, 50.0], [10.0, 0.0]]), label_distances=np.array([0.0, 1.0]),
    ...     reference=np.array([0.5, 0.5]), sizes=np.array([100.0, 10.0]), privacy_values=np.array([1.0, 1.0]),
    ...     min_clients=1,
    ... )
    >>> ask_selection(lambda question: question.sizes >= 100, question).tolist()
    [True, False]
    """
    answer = _answer("select", rule, question)
    try:
        return arguments.mask("selection", answer, length=question.clients)
    except ImpossibleArgument as error:
        raise CustomRuleFailed(f"select() returned {_shown(answer)}, not {question.clients} truth values") from error


def _answer(name: str, rule: Callable[[Question], Answer], question: Question) -> Answer:
    try:
        return rule(question)
    except (Exception, SystemExit) as error:
        raise CustomRuleFailed(f"{name}() raised {type(error).__name__}") from error


def _shown(answer: object) -> str:
    if isinstance(answer, float):
        return f"{answer:g}"
    if isinstance(answer, np.ndarray):
        return f"an array of {answer.dtype} {answer.shape}"
    length = f" of length {len(answer)}" if isinstance(answer, list | tuple) else ""
    return f"a {type(answer).__name__}{length}"
