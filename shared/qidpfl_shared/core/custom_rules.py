"""Rules of a user's own: what a function that chooses rewards or clients is asked, and the check of what it answers.

A rule should answer from its question alone, and the same whenever it is asked: an audit asks it again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from . import arguments
from .arguments import ImpossibleArgument, Mask, Vector
from .capped_reward import optimal_reward_capped
from .reward import CostModel, Market, RewardRange, Weighting


class CustomRuleFailed(Exception):
    """A user's rule raised an error, or answered something that cannot be used. The message shows none of its data."""


@dataclass(frozen=True, kw_only=True)
class PastRound:
    """A round that was paid: its reward, and the accuracy of its model on held-out records (None: not evaluated)."""

    reward: float
    accuracy: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RewardQuestion:
    """What should this round pay? Money is in units; arrays have one entry per invited client and cannot be changed.

    The answer is a wish: the reward range, the largest reward and what is left of the total bound it as they bound
    every policy.
    """

    round_number: int
    """The round to be opened: 1, 2, … up to `horizon`."""
    past: tuple[PastRound, ...]
    """The rounds before it, the first one first."""
    privacy_values: Vector
    """What a unit of budget is worth to each client (ν)."""
    sizes: Vector
    """How many records each client has."""
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
    """What the task may still pay, in this round and all later ones; a larger reward ends it."""

    @property
    def horizon(self) -> int:
        """The number of rounds of the task (T)."""
        return self.cost_model.horizon

    @property
    def accuracies(self) -> tuple[float | None, ...]:
        """The accuracy after each round so far; None where it was not evaluated."""
        return tuple(held.accuracy for held in self.past)

    @property
    def rewards(self) -> tuple[float, ...]:
        """What each round so far has offered."""
        return tuple(held.reward for held in self.past)

    def optimal_reward(self) -> float:
        """What policy `optimal` would wish to pay: the reward that costs the server least (Theorem 2, with caps)."""
        market = Market(
            cost_model=self.cost_model,
            weighting=self.weighting,
            privacy_weight=self.privacy_weight,
            privacy_values=self.privacy_values,
            sizes=self.sizes,
            noise_scales=self.noise_scales,
        )
        return optimal_reward_capped(market=market, round_number=self.round_number, caps=self.caps)


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionQuestion:
    """Who takes part? Arrays have one entry (or row) per client with records and cannot be changed."""

    label_counts: Vector
    """How many records of each label each client has told of: clients x labels. Noised ones, as a rule."""
    label_distances: Vector
    """Each client's L1 distance to the reference, from 0 to 2."""
    reference: Vector
    """The reference distribution of labels; it adds up to 1."""
    sizes: Vector
    """How many records each client has."""
    privacy_values: Vector
    """What a unit of budget is worth to each client (ν)."""
    min_clients: int
    """With fewer than these the task fails, or is filled up with the nearest of the others."""

    @property
    def clients(self) -> int:
        """How many there are to choose from."""
        return self.label_distances.size


Question = TypeVar("Question")
Answer = TypeVar("Answer")
CustomReward = Callable[[RewardQuestion], float]
CustomSelect = Callable[[SelectionQuestion], Sequence[bool] | Mask]


def read_only(array: Vector) -> Vector:
    """A copy that nobody can write to."""
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def ask_reward(own: CustomReward, question: RewardQuestion) -> float:
    """The reward that a user's rule wishes to pay. Raises `CustomRuleFailed` unless it is finite and at least 0."""
    answer = _answer("reward", own, question)
    try:
        return arguments.non_negative("reward", answer)
    except ImpossibleArgument as error:
        raise CustomRuleFailed(f"reward() returned {_shown(answer)}, not a finite number of at least 0") from error


def ask_selection(own: CustomSelect, question: SelectionQuestion) -> Mask:
    """Whom a user's rule keeps. Raises `CustomRuleFailed` unless it says true or false of every client."""
    answer = _answer("select", own, question)
    try:
        return arguments.mask("selection", answer, length=question.clients)
    except ImpossibleArgument as error:
        raise CustomRuleFailed(f"select() returned {_shown(answer)}, not {question.clients} truth values") from error


def _answer(name: str, own: Callable[[Question], Answer], question: Question) -> Answer:
    try:
        return own(question)
    except (Exception, SystemExit) as error:
        raise CustomRuleFailed(f"{name}() raised {type(error).__name__}") from error


def _shown(answer: object) -> str:
    if isinstance(answer, float):
        return f"{answer:g}"
    if isinstance(answer, np.ndarray):
        return f"an array of {answer.dtype} {answer.shape}"
    length = f" of length {len(answer)}" if isinstance(answer, list | tuple) else ""
    return f"a {type(answer).__name__}{length}"
