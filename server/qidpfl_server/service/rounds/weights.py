"""What each accepted update contributes to the next model: its weight, and the factor that clips it.

The numbers depend only on what the store keeps, so that the audit computes the same ones again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from qidpfl_shared.core.aggregation import (
    AggregationRule,
    bounded_weights,
    budget_factors,
    clip_scale,
    counted_sizes,
    norm_bound,
    usual_signal,
)
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.averaging.optimal_weights import LabelGaps, label_gap, label_gaps_of
from qidpfl_shared.core.noise_audit import alpha_per_upload
from qidpfl_shared.core.reward import Weighting, aggregation_weights
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...domain import Budget, Client, RoundInvitation, Update

# No client pulls more than this multiple of the median client, with any weighting. Honest clients hardly reach it.
_MAX_PULL = 2.0


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The public numbers of an accepted update. Without a game both budgets are 0.

    `label_gap` is known only if the weights balance labels and the client has sent its label counts.
    """

    digest: str
    size: int
    declared_rho: float
    planned_rho: float
    squared_norm: float
    label_gap: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class WeightedUpload:
    """An update in the average. `scale` is below 1 if the server clips it; `noise_std` is 0 without noise."""

    digest: str
    weight: float
    scale: float
    noise_std: float


def label_gaps(spec: TaskSpec, clients: Iterable[Client]) -> dict[str, Vector]:
    """The label shares of each client minus the reference, if the weights of the task use them.

    `clients` are all of the task: a pooled reference is that of all clients that the selection has compared.
    """
    if spec.aggregation.weighting is not Weighting.OPTIMAL:
        return {}
    known = {client.client_id: client for client in clients}
    compared = [client.label_counts for client in known.values() if client.label_distance is not None]
    # Only a pooled reference uses the counts.
    reference = spec.label_reference([counts or () for counts in compared] or [[1] * spec.workload.labels])
    return {
        client_id: label_gap(label_counts=client.label_counts, reference=reference)
        for client_id, client in known.items()
        if client.label_counts is not None
    }


def label_costs(spec: TaskSpec, clients: Sequence[Client], gaps: Mapping[str, Vector]) -> LabelGaps | None:
    """The gaps of some clients with what they cost; None if the weights do not use them."""
    if not gaps or not clients:
        return None
    mechanism = spec.privacy.mechanism.build()
    signals = [mechanism.signal_bound(size=client.size or 1) for client in clients]
    return label_gaps_of([gaps.get(client.client_id) for client in clients], signal_bounds=signals)


def uploads_of(
    spec: TaskSpec,
    accepted: Sequence[str],
    clients: Mapping[str, Client],
    budgets: Mapping[str, Budget],
    invitations: Mapping[str, RoundInvitation],
    updates: Mapping[str, Update],
) -> list[Upload]:
    """The uploads of the accepted clients, in their order. `clients` are all of the task."""
    gaps = label_gaps(spec, clients.values())
    return [
        Upload(
            digest=updates[client_id].digest,
            size=clients[client_id].size or 1,
            declared_rho=budgets[client_id].rho,
            planned_rho=invitations[client_id].expected_rho,
            squared_norm=updates[client_id].squared_norm,
            label_gap=gaps.get(client_id),
        )
        for client_id in accepted
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
    # An update whose optimal weight is 0 pulls nothing. It must not lower the bound of the others.
    pulling = [place for place, part in enumerate(parts) if part.weight > 0]
    limited = bounded_weights(
        weights=[parts[place].weight for place in pulling], bounds=[bounds[place] for place in pulling], max_ratio=ratio
    )
    for place, weight in zip(pulling, limited.tolist(), strict=True):
        parts[place] = replace(parts[place], weight=weight)
    return [
        replace(part, scale=clip_scale(squared_norm=upload.squared_norm, bound=bound))
        for part, upload, bound in zip(parts, uploads, bounds, strict=True)
    ]


def noise_of_average(spec: TaskSpec, parts: Sequence[WeightedUpload], sizes: Sequence[int]) -> float | None:
    """The expected norm of the noise of the average, in units of the bound of one update's signal.

    None without noise, or without an update. A trimmed mean counts as the mean.
    """
    total = math.fsum(part.weight for part in parts)
    if not spec.privacy.noise or total <= 0:
        return None
    mechanism = spec.privacy.mechanism.build()
    ratio = None if spec.defence is None else spec.defence.max_size_ratio
    bound = median(mechanism.signal_bound(size=size) for size in counted_sizes(sizes=sizes, max_ratio=ratio))
    energy = math.fsum((part.weight * part.scale * part.noise_std) ** 2 for part in parts)
    return math.sqrt(spec.dimension * energy) / total / bound


def _plain(spec: TaskSpec, uploads: Sequence[Upload], sizes: Sequence[int]) -> list[WeightedUpload]:
    """The weights of the task's weighting. Without noise there is no variance to weigh by, so the size is used."""
    mechanism = spec.privacy.mechanism.build()
    weighting, noise = spec.aggregation.weighting, spec.privacy.noise
    if not noise and weighting in (Weighting.INVERSE_VARIANCE, Weighting.OPTIMAL):
        weighting = Weighting.SIZE
    labels = None
    if weighting is Weighting.OPTIMAL:
        signals = [mechanism.signal_bound(size=size) for size in sizes]
        labels = label_gaps_of([upload.label_gap for upload in uploads], signal_bounds=signals)
    weights = aggregation_weights(
        weighting=weighting,
        budgets=[upload.declared_rho if noise else 1.0 for upload in uploads],
        sizes=sizes,
        noise_scales=[mechanism.noise_scale(size=size) for size in sizes],
        labels=labels,
        dimension=spec.dimension,
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
