"""A task that pays Flower nodes: which of them take part, what a round offers, and how it is settled.

The rules are those of the coordinator of QI-DPFL, from the same functions. There is no store, no journal and no
defence: the state lives as long as the run of Flower. No function here imports Flower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from qidpfl_shared.core.aggregation import ServerState, server_step, weighted_mean
from qidpfl_shared.core.money import split_reward
from qidpfl_shared.core.noise_audit import NoiseAudit, NoiseVerdict, alpha_per_upload
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.reward import aggregation_weights
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.core.selection import SelectionStatus, select
from qidpfl_shared.protocol.mechanism_specs import PaperLiteral, UpdateClip
from qidpfl_shared.protocol.messages import Profile, RoundOffer
from qidpfl_shared.protocol.releases import histogram_release, round_release
from qidpfl_shared.protocol.task_spec import AuditMode, TaskSpec
from qidpfl_shared.protocol.wire import Vector32, digest_of, encode, squared_norm

from .flower_task import check_supported
from .node_messages import NodeAnswer

# An upload whose norm is above this multiple of the expected noise can spoil the model in one round.
_LARGEST_NOISE = 10.0
# A budget may exceed its bound by the rounding of JSON.
_ROUNDING = 1 + 1e-12


@dataclass
class PaidNode:
    """What the server knows of a node of Flower."""

    node_id: int
    profile: Profile
    account: PrivacyAccount
    label_distance: float | None = None
    selected: bool = False
    paid_micro: int = 0


@dataclass(frozen=True, kw_only=True)
class SettledNode:
    """What one node did and got in a round. `refusal` says why its budget or its update does not count."""

    rho: float
    verdict: NoiseVerdict | None
    accepted: bool
    payment_micro: int
    refusal: str | None = None


@dataclass(frozen=True, kw_only=True)
class PaidRound:
    """A round that has ended. A void one, with too few updates, pays nothing and does not change the model."""

    round_number: int
    void: bool
    reward_micro: int
    kept_micro: int
    nodes: Mapping[int, SettledNode]

    @property
    def paid_micro(self) -> int:
        """What all nodes got together."""
        return sum(node.payment_micro for node in self.nodes.values())

    @property
    def accepted(self) -> int:
        """The number of updates that count."""
        return sum(node.accepted for node in self.nodes.values())


@dataclass
class _OpenRound:
    plan: RoundPlan
    nodes: list[int]

    @property
    def limits(self) -> dict[int, float]:
        return dict(zip(self.nodes, self.plan.limits, strict=True))


@dataclass
class PaidTask:
    """The rounds of one task, with the nodes in the order of their numbers. Raises `Misconfigured` for a wrong task."""

    spec: TaskSpec
    state: ServerState
    nodes: dict[int, PaidNode] = field(default_factory=dict, init=False)
    rounds: list[PaidRound] = field(default_factory=list, init=False)
    # Why there is no further round; None while there may be one.
    ended: str | None = field(default=None, init=False)
    _open: _OpenRound | None = field(default=None, init=False)
    _digests: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        check_supported(self.spec)

    def select(self, profiles: Mapping[int, Profile]) -> None:
        """Select among the nodes that sent a profile; the task ends if too few pass."""
        for node_id in sorted(profiles):
            profile = profiles[node_id]
            if self._is_within_bounds(profile):
                releases = () if profile.label_counts is None else (histogram_release(profile.histogram_rho),)
                account = PrivacyAccount(
                    lifetime_rho=min(
                        limit or np.inf for limit in (profile.lifetime_rho, self.spec.privacy.lifetime_rho)
                    ),
                    accept_unproven=True,
                    releases=releases,
                )
                self.nodes[node_id] = PaidNode(node_id, profile, account)
        known = list(self.nodes.values())
        if len(known) < self.spec.rounds.min_clients:
            self.ended = f"{len(known)} nodes sent a profile, {self.spec.rounds.min_clients} are needed"
            return
        histograms = [node.profile.label_counts or () for node in known]
        selection = select(
            rule=self.spec.selection_rule(),
            histograms=histograms,
            reference=self.spec.label_reference(histograms),
            min_clients=self.spec.rounds.min_clients,
            shortfall=self.spec.selection.shortfall,
        )
        for node, kept, distance in zip(known, selection.selected, selection.label_distances, strict=True):
            node.selected, node.label_distance = bool(kept), float(distance)
        if selection.status is SelectionStatus.TOO_FEW_CLIENTS:
            self.ended = "too few nodes pass the selection"

    def _is_within_bounds(self, profile: Profile) -> bool:
        bounds = self.spec.bounds
        return (
            profile.label_counts is not None
            and len(profile.label_counts) == self.spec.workload.labels
            and profile.size <= bounds.size_max
            and profile.privacy_value is not None
            and bounds.privacy_value_min <= profile.privacy_value <= bounds.privacy_value_max
        )

    @property
    def has_open_round(self) -> bool:
        """Whether offers are out that no settlement has ended."""
        return self._open is not None

    @property
    def paid_micro(self) -> int:
        """What all rounds have paid so far."""
        return sum(round_.paid_micro for round_ in self.rounds)

    def open_round(self, round_number: int, *, answer_s: float = 3600.0) -> dict[int, RoundOffer]:
        """The offer to each invited node; empty once the task has ended."""
        if self.ended is not None:
            return {}
        if round_number > self.spec.game.horizon:
            self.ended = f"the task has {self.spec.game.horizon} rounds"
            return {}
        chosen = [node for node in self.nodes.values() if node.selected]
        plan = plan_round(
            rules=self.spec.round_rules(),
            round_number=round_number,
            participants=[_participant(node) for node in chosen],
            reward_left_micro=self.spec.bounds.reward_total_micro - self.paid_micro,
        )
        if plan.status is not PlanStatus.PLANNED:
            self.ended = plan.status.value
            return {}
        self._open = _OpenRound(plan, [node.node_id for node in chosen])
        invited = zip(chosen, plan.standings, plan.limits, strict=True)
        return {
            node.node_id: self._offer(plan, limit, answer_s)
            for node, standing, limit in invited
            if standing is Standing.INVITED
        }

    def _offer(self, plan: RoundPlan, limit: float, answer_s: float) -> RoundOffer:
        ends = datetime.now(UTC) + timedelta(seconds=answer_s)
        mechanism = self.spec.privacy.mechanism
        assert isinstance(mechanism, UpdateClip | PaperLiteral)
        return RoundOffer(
            round_number=plan.round_number,
            attempt=1,
            reward_micro=plan.reward_micro,
            total=plan.total,
            standing=Standing.INVITED,
            model_version=plan.round_number - 1,
            model_digest=digest_of(encode(self.state.parameters)),
            mechanism=mechanism.build().name,
            clip_norm=mechanism.clip_norm,
            dimension=self.spec.dimension,
            rho_max=limit,
            noise=self.spec.privacy.noise,
            declare_by=ends,
            deliver_by=ends,
            declare_in_s=answer_s,
            deliver_in_s=answer_s,
        )

    def settle(self, answers: Mapping[int, NodeAnswer]) -> PaidRound:
        """Audit, pay and average the answers to the open round, and make the next model. A node without one is absent.

        All budgets whose update was sent are charged, also those that do not count.
        """
        assert self._open is not None
        open_, self._open = self._open, None
        plan = open_.plan
        judged = {
            node_id: self._judged(node_id, answers[node_id], open_) for node_id in open_.nodes if node_id in answers
        }
        accepted = [node_id for node_id, node in judged.items() if node.accepted]
        void = len(accepted) < plan.min_updates
        declared = [node_id for node_id, node in judged.items() if node.rho > 0]
        split = split_reward(
            reward_micro=plan.reward_micro,
            declared=[judged[node_id].rho for node_id in declared],
            delivered=[judged[node_id].accepted and not void for node_id in declared],
        )
        payments = dict(zip(declared, split.payments, strict=True))
        if not void:
            self.state = self._next_state({node_id: answers[node_id] for node_id in accepted})
        for node_id, amount in payments.items():
            self.nodes[node_id].paid_micro += amount
        nodes = {
            node_id: SettledNode(
                rho=node.rho,
                verdict=node.verdict,
                accepted=node.accepted and not void,
                payment_micro=payments.get(node_id, 0),
                refusal=node.refusal,
            )
            for node_id, node in judged.items()
        }
        settled = PaidRound(
            round_number=plan.round_number,
            void=void,
            reward_micro=plan.reward_micro,
            kept_micro=split.kept,
            nodes=nodes,
        )
        self.rounds.append(settled)
        return settled

    def _judged(self, node_id: int, answer: NodeAnswer, open_: _OpenRound) -> SettledNode:
        """The verdict on one answer, before anything is paid."""
        limit = open_.limits[node_id] * _ROUNDING
        if answer.declined is not None or answer.update is None:
            return _absent(answer.declined or "no update")
        if not self.spec.bounds.rho_min <= answer.rho <= limit:
            return _absent(f"budget {answer.rho:g} is outside the bounds of the round")
        node = self.nodes[node_id]
        release = round_release(
            privacy=self.spec.privacy,
            round_number=open_.plan.round_number,
            rho=answer.rho,
            size=node.profile.size,
        )
        node.account = node.account.charge(release)
        refusal = self._refusal(node, answer.rho, answer.update)
        verdict = None if refusal else self._verdict(node, answer.rho, answer.update)
        wrong = verdict in (NoiseVerdict.TOO_LITTLE_NOISE, NoiseVerdict.TOO_MUCH_NOISE)
        if wrong and self.spec.privacy.audit is AuditMode.REJECT:
            refusal = f"noise audit: {verdict}"
        return SettledNode(rho=answer.rho, verdict=verdict, accepted=refusal is None, payment_micro=0, refusal=refusal)

    def _refusal(self, node: PaidNode, rho: float, update: Vector32) -> str | None:
        """Why this vector is no update of this round at all."""
        if update.shape != (self.spec.dimension,) or not np.isfinite(update).all():
            return f"not {self.spec.dimension} finite numbers"
        mechanism = self.spec.privacy.mechanism.build()
        noise = mechanism.noise_std(rho=rho, size=node.profile.size) * np.sqrt(self.spec.dimension)
        if np.sqrt(squared_norm(update)) > mechanism.signal_bound(size=node.profile.size) + _LARGEST_NOISE * noise:
            return "its norm is out of bounds"
        digest = digest_of(encode(update))
        if digest in self._digests:
            return "a copy of another update"
        self._digests.add(digest)
        return None

    def _verdict(self, node: PaidNode, rho: float, update: Vector32) -> NoiseVerdict | None:
        if self.spec.privacy.audit is AuditMode.OFF:
            return None
        audit = NoiseAudit.of_upload(
            mechanism=self.spec.privacy.mechanism.build(),
            rho=rho,
            size=node.profile.size,
            dimension=self.spec.dimension,
            alpha=alpha_per_upload(
                alpha=self.spec.privacy.audit_alpha, clients=len(self.nodes), rounds=self.spec.game.horizon
            ),
        )
        return audit.verdict(squared_norm=squared_norm(update))

    def _next_state(self, accepted: Mapping[int, NodeAnswer]) -> ServerState:
        mechanism = self.spec.privacy.mechanism.build()
        sizes = [self.nodes[node_id].profile.size for node_id in accepted]
        weights = aggregation_weights(
            weighting=self.spec.aggregation.weighting,
            budgets=[answer.rho for answer in accepted.values()],
            sizes=sizes,
            noise_scales=[mechanism.noise_scale(size=size) for size in sizes],
        )
        updates = [answer.update for answer in accepted.values() if answer.update is not None]
        mean = weighted_mean(updates=list(zip(weights.tolist(), updates, strict=True)), dimension=self.spec.dimension)
        step = self.spec.aggregation
        return server_step(state=self.state, mean_update=mean, learning_rate=step.learning_rate, momentum=step.momentum)


def _participant(node: PaidNode) -> Participant:
    assert node.profile.privacy_value is not None
    return Participant(
        privacy_value=node.profile.privacy_value,
        size=node.profile.size,
        rho_cap=node.profile.rho_cap or np.inf,
        remaining_rho=node.account.remaining_rho,
    )


def _absent(reason: str) -> SettledNode:
    """A node that does not take part in this round."""
    return SettledNode(rho=0.0, verdict=None, accepted=False, payment_micro=0, refusal=reason)


def totals_line(rounds: Sequence[PaidRound]) -> str:
    """What all rounds cost, in one line.

    >>> totals_line([])
    'no round was settled'
    """
    if not rounds:
        return "no round was settled"
    rewards, paid, kept = (
        sum(getattr(round_, name) for round_ in rounds) for name in ("reward_micro", "paid_micro", "kept_micro")
    )
    return f"rewards {rewards} micro = paid {paid} + kept {kept}, in {len(rounds)} rounds"
