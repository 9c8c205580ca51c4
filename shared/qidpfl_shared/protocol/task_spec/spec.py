"""`TaskSpec`: everything that defines a task. It never changes after the task is created; clients pin its digest."""

from collections.abc import Sequence

from pydantic import model_validator

from ...core.arguments import ImpossibleArgument, Numbers, Vector
from ...core.averaging.optimal_weights import LabelGaps
from ...core.averaging.post_processing import LowPass, PostProcessing
from ...core.custom_rules import CustomSelect
from ...core.markets.design import MarketDesign
from ...core.markets.schedules import RewardSchedule
from ...core.money import from_micro
from ...core.reward import RewardRange, Weighting, aggregation_weights, noise_variance, round_cost
from ...core.round_rules import RoundRules
from ...core.selection import (
    All,
    Custom,
    Histograms,
    Random,
    Rule,
    Threshold,
    Union,
    given_reference,
    pooled_reference,
    uniform_reference,
)
from ..compatibility import PROTOCOL_VERSION, spec_digest
from .checks import check_consistent
from .parts import SelectionRule, TaskParts


class TaskSpec(TaskParts):
    """A federated task."""

    @model_validator(mode="after")
    def _check(self) -> "TaskSpec":
        check_consistent(self)
        return self

    @property
    def digest(self) -> str:
        """The SHA-256 of the spec in canonical JSON (RFC 8785). It is the same on every machine."""
        return spec_digest(self.facts())

    @property
    def current(self) -> "TaskSpec":
        """The same task as this version of the protocol names it: with the version, and what it requires."""
        return self.model_copy(update={"protocol_version": PROTOCOL_VERSION, "requires": self.needs})

    @classmethod
    def read(cls, text: str | bytes) -> "TaskSpec":
        """The spec of a JSON text, which may have fields of a later version. Raises pydantic's `ValidationError`."""
        return cls.model_validate_json(text, extra="allow")

    def round_rules(self) -> RoundRules:
        """Return the rules of the task for `plan_round`."""
        game = self.game
        admissible = RewardRange()
        if game.reward_range is not None:
            admissible = RewardRange(
                minimum=from_micro(game.reward_range.minimum_micro), maximum=from_micro(game.reward_range.maximum_micro)
            )
        return RoundRules(
            policy=game.policy,
            mechanism=self.privacy.mechanism.build(),
            weighting=self.aggregation.weighting,
            cost_model=self.cost_model(),
            privacy_weight=game.privacy_weight,
            min_share=game.min_share,
            min_clients=self.rounds.min_clients,
            min_updates=self.rounds.min_updates,
            rho_max=self.bounds.rho_max,
            rho_min=self.bounds.rho_min,
            reward_range=admissible,
            fixed_reward=None if game.fixed_reward_micro is None else from_micro(game.fixed_reward_micro),
            reward_schedule=(
                None if game.reward_schedule_micro is None else tuple(map(from_micro, game.reward_schedule_micro))
            ),
            seed=game.seed,
            reward_max_micro=self.bounds.reward_max_micro,
            max_share=None if self.defence is None else self.defence.max_share,
            max_bid=None if self.defence is None else self.defence.max_bid,
            max_size_ratio=None if self.defence is None else self.defence.max_size_ratio,
            market=self.market,
            value_min=self.bounds.privacy_value_min,
            value_max=self.bounds.privacy_value_max,
            winners=game.winners,
            prior=game.prior,
            schedule=self._schedule(),
        )

    @property
    def design(self) -> MarketDesign:
        """The rules of the task's market."""
        return self.round_rules().design

    def _schedule(self) -> RewardSchedule | None:
        game = self.game
        if game.schedule is None:
            return None
        return RewardSchedule(
            kind=game.schedule, horizon=game.horizon, discount=game.discount, weights=game.schedule_weights
        )

    def declared_cost(
        self,
        *,
        round_number: int,
        reward: float,
        budgets: Numbers,
        sizes: Sequence[int],
        labels: LabelGaps | None = None,
    ) -> float | None:
        """Return the server's cost of a round with the budgets of the updates that count.

        Weights that balance `labels` add what the labels of the average count as. None if there are no budgets, or if
        the task has no noise.
        """
        if not len(budgets) or not self.privacy.noise:
            return None
        mechanism = self.privacy.mechanism.build()
        by_size = {size: mechanism.noise_scale(size=size) for size in set(sizes)}
        scales = [by_size[size] for size in sizes]
        model, weighting = self.cost_model(), self.aggregation.weighting
        weights = aggregation_weights(
            weighting=weighting,
            budgets=budgets,
            sizes=sizes,
            noise_scales=scales,
            labels=labels,
            dimension=self.dimension,
        )
        cost = round_cost(
            cost_model=model,
            round_number=round_number,
            reward=reward,
            noise_variance=noise_variance(weights=weights, budgets=budgets, noise_scales=scales),
        )
        if labels is None or weighting is not Weighting.OPTIMAL:
            return cost
        return cost + model.error_factor * labels.mismatch(weights)

    @property
    def post_processing(self) -> LowPass | None:
        """What is done with the average of the updates; None: nothing."""
        step, rows = self.aggregation, self.image_rows
        if step.post_processing is not PostProcessing.LOWPASS or rows is None:
            return None
        return LowPass(rows=rows, cutoff=rows.default_cutoff if step.cutoff is None else step.cutoff)

    def selection_rule(self, custom_select: CustomSelect | None = None) -> Rule:
        """Return the selection rule. Raises `ImpossibleArgument` if rule own lacks its function."""
        match self.selection.rule:
            case SelectionRule.THRESHOLD:
                return Threshold(self.selection.distance_threshold)
            case SelectionRule.ALL:
                return All()
            case SelectionRule.UNION:
                return Union(self.rounds.min_clients)
            case SelectionRule.RANDOM:
                assert self.selection.random_clients is not None and self.selection.seed is not None
                return Random(self.selection.random_clients, self.selection.seed)
            case SelectionRule.OWN:
                if custom_select is None:
                    raise ImpossibleArgument("custom_select", custom_select, "must be given under rule own")
                return Custom(custom_select)

    def label_reference(self, histograms: Histograms) -> Vector:
        """Return the reference distribution of labels. Only a pooled reference uses the histograms."""
        match self.selection.reference:
            case "uniform":
                return uniform_reference(labels=self.workload.labels)
            case "pooled":
                return pooled_reference(histograms=histograms)
            case "given":
                return given_reference(weights=self.selection.reference_weights or ())
