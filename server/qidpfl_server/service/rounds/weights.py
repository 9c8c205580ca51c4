"""What each accepted update contributes to the next model: its weight, and the factor that clips it.

The numbers depend only on what the store keeps, so that the audit computes the same ones again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qidpfl_shared.core.aggregation import (
    AggregationRule,
    bounded_weights,
    budget_factors,
    clip_scale,
    counted_sizes,
    norm_bound,
    usual_signal,
)
from qidpfl_shared.core.noise_audit import alpha_per_upload
from qidpfl_shared.core.reward import Weighting, aggregation_weights
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...domain import Budget, Client, RoundInvitation, Update

# No client pulls more than this multiple of the median client, with any weighting. Honest clients hardly reach it.
_MAX_PULL = 2.0


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The public numbers of an accepted update. Without a game both budgets are 0."""

    digest: str
    size: int
    declared_rho: float
    planned_rho: float
    squared_norm: float


@dataclass(frozen=True, kw_only=True)
class WeightedUpload:
    """An update in the average. `scale` is below 1 if the server clips it; `noise_std` is 0 without noise."""

    digest: str
    weight: float
    scale: float
    noise_std: float


def uploads_of(
    accepted: Sequence[Client],
    budgets: Mapping[str, Budget],
    invitations: Mapping[str, RoundInvitation],
    updates: Mapping[str, Update],
) -> list[Upload]:
    """The uploads of these clients, in their order."""
    return [
        Upload(
            digest=updates[client.client_id].digest,
            size=client.size or 1,
            declared_rho=budgets[client.client_id].rho,
            planned_rho=invitations[client.client_id].expected_rho,
            squared_norm=updates[client.client_id].squared_norm,
        )
        for client in accepted
    ]


def weighted_uploads(spec: TaskSpec, uploads: Sequence[Upload], *, participants: int) -> list[WeightedUpload]:
    """The weight and the clipping of each upload. `participants` is the number of clients in the plan of the round."""
    if spec.defence is None:
        return _plain(spec, uploads, [upload.size for upload in uploads])
    sizes = counted_sizes(sizes=[upload.size for upload in uploads], max_ratio=spec.defence.max_size_ratio)
    factors = budget_factors(
        declared=[upload.declared_rho for upload in uploads], planned=[upload.planned_rho for upload in uploads]
    )
    parts = [
        replace(part, weight=part.weight * float(factor))
        for part, factor in zip(_plain(spec, uploads, sizes), factors, strict=True)
    ]
    # The paper's literal noise does not fit its signal: its norm says nothing.
    if not spec.defence.clip_uploads or spec.privacy.mechanism.build().heuristic:
        return parts
    bounds = _norm_bounds(spec, uploads, parts, sizes, participants)
    # With weights that ignore the size, a tiny size would mean much noise, a large norm bound and much influence.
    ratio = 1.0 if spec.aggregation.rule is AggregationRule.NORM_BOUNDED else _MAX_PULL
    weights = bounded_weights(weights=[part.weight for part in parts], bounds=bounds, max_ratio=ratio).tolist()
    parts = [replace(part, weight=weight) for part, weight in zip(parts, weights, strict=True)]
    return [
        replace(part, scale=clip_scale(squared_norm=upload.squared_norm, bound=bound))
        for part, upload, bound in zip(parts, uploads, bounds, strict=True)
    ]


def _plain(spec: TaskSpec, uploads: Sequence[Upload], sizes: Sequence[int]) -> list[WeightedUpload]:
    """The weights of the task's weighting. Without noise there is no variance to weigh by, so the size is used."""
    mechanism = spec.privacy.mechanism.build()
    weighting, noise = spec.aggregation.weighting, spec.privacy.noise
    if not noise and weighting is Weighting.INVERSE_VARIANCE:
        weighting = Weighting.SIZE
    weights = aggregation_weights(
        weighting=weighting,
        budgets=[upload.declared_rho if noise else 1.0 for upload in uploads],
        sizes=sizes,
        noise_scales=[mechanism.noise_scale(size=size) for size in sizes],
    )
    return [
        WeightedUpload(
            digest=upload.digest,
            weight=weight,
            scale=1.0,
            noise_std=mechanism.noise_std(rho=upload.declared_rho, size=upload.size) if noise else 0.0,
        )
        for upload, weight in zip(uploads, weights.tolist(), strict=True)
    ]


def _norm_bounds(
    spec: TaskSpec, uploads: Sequence[Upload], parts: Sequence[WeightedUpload], sizes: Sequence[int], participants: int
) -> list[float]:
    """The largest norm that counts for each upload: noise of its declared budget, and a signal like that of most."""
    assert spec.defence is not None
    mechanism = spec.privacy.mechanism.build()
    alpha = alpha_per_upload(alpha=spec.privacy.audit_alpha, clients=max(1, participants), rounds=spec.game.horizon)
    usual = usual_signal(
        squared_norms=[upload.squared_norm for upload in uploads],
        noise_stds=[part.noise_std for part in parts],
        dimension=spec.dimension,
    )
    return [
        norm_bound(
            # The signal of some mechanisms grows with the size, so the size that counts bounds it.
            signal=min(mechanism.signal_bound(size=size), spec.defence.max_signal_ratio * usual),
            noise_std=part.noise_std,
            dimension=spec.dimension,
            alpha=alpha,
            feedback=mechanism.feedback,
        )
        for part, size in zip(parts, sizes, strict=True)
    ]
