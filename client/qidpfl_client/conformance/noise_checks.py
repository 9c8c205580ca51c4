"""Statistical checks of a client's updates: the noise, the sign and the clipping, without knowing its records.

All updates of a group were computed on the same model with `gradient_once`, so they have the same mean: the gradient.
What differs between them is noise alone. With the weighted mean ū of m updates of budgets ρ_t, the sum of
(u_t − ū)²/σ_t² over d coordinates is chi-square with (m − 1)·d degrees of freedom, for every data set.

The models are certain of one label a. A record of another label then has the gradient s·(x, 1) for the weights of a,
and the same with a minus sign for those of its own label, with s > 0 from the clipping. For features x ≥ 0 the sign of
every coordinate is known. The part for label a has a norm of at most C/√2, because both parts are equally long.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import unflatten

from .report import ConformanceReport

# The probability that a check accuses a correct client.
ALPHA = 1e-6
_SIGN_Z = float(stats.norm.isf(ALPHA))
# The least part of its sum that a gradient keeps when the certain label changes.
_LEAST_PART = 0.7


@dataclass(frozen=True, kw_only=True)
class ReceivedUpdate:
    """An update as it was received: its budget, the client's number of records, and the label of its model."""

    update: Vector
    rho: float
    size: int
    label: int

    def noise_std(self, spec: TaskSpec) -> float:
        """σ of the noise that the update must have."""
        return spec.privacy.mechanism.build().noise_std(rho=self.rho, size=self.size)


@dataclass(frozen=True)
class _Group:
    """The releases of one model: their weighted mean, its noise, and the residuals in units of the noise."""

    label: int
    mean: Vector
    mean_std: float
    residuals: Vector

    @classmethod
    def of(cls, releases: Sequence[ReceivedUpdate], spec: TaskSpec) -> "_Group":
        updates = np.array([release.update for release in releases])
        stds = np.array([release.noise_std(spec) for release in releases])
        weights = stds**-2
        mean = weights @ updates / weights.sum()
        return cls(releases[0].label, mean, float(weights.sum() ** -0.5), (updates - mean) / stds[:, None])

    @property
    def spare(self) -> int:
        """How many of the releases are left to measure the noise."""
        return len(self.residuals) - 1


def check_releases(report: ConformanceReport, releases: Sequence[ReceivedUpdate], spec: TaskSpec) -> None:
    """Judge the releases of a client."""
    labels = sorted({release.label for release in releases})
    groups = [_Group.of([release for release in releases if release.label == label], spec) for label in labels]
    groups.sort(key=lambda group: -group.spare)
    _check_noise(report, groups, spec)
    _check_sign(report, groups, spec)
    _check_clipping(report, groups, spec)


def _check_noise(report: ConformanceReport, groups: Sequence[_Group], spec: TaskSpec) -> None:
    """Each tensor has noise of its own degrees of freedom, so that a tensor without noise is found too."""
    check = "noise.size"
    if not any(group.spare for group in groups):
        report.not_checked(check, "two updates on the same model are needed")
        return
    wrong, seen = [], []
    start = 0
    for tensor in spec.layout.tensors:
        part = slice(start, start + tensor.size)
        start += tensor.size
        energy = sum(float(np.square(group.residuals[:, part]).sum()) for group in groups)
        freedom = tensor.size * sum(group.spare for group in groups)
        ratio = (energy / freedom) ** 0.5
        seen.append(f"{tensor.name}: {ratio:.3f} times σ on {freedom} values")
        if stats.chi2.cdf(energy, freedom) < ALPHA / 2:
            wrong.append(f"too little noise in {tensor.name}: {ratio:.3f} times σ")
        elif stats.chi2.sf(energy, freedom) < ALPHA / 2:
            wrong.append(f"too much noise in {tensor.name}: {ratio:.3f} times σ")
    report.expect(check, not wrong, "; ".join(wrong), "; ".join(seen))


def _check_sign(report: ConformanceReport, groups: Sequence[_Group], spec: TaskSpec) -> None:
    """The projection on the known signs. Its mean is positive for a correct client, so Φ(−z) bounds a false alarm."""
    check = "update.sign"
    scores = []
    for group in groups:
        direction = _signs(spec, group.label)
        scores.append(float(direction @ group.mean / (np.linalg.norm(direction) * group.mean_std)))
    said = ", ".join(f"{score:.1f}" for score in scores)
    if scores[0] < -_SIGN_Z:
        report.fails(check, f"the update points against the gradient (z = {said}): the coordinator subtracts updates")
    elif len(groups) > 1 and scores[0] > _SIGN_Z and _is_stale(groups, spec):
        report.fails(check, f"the update is not the gradient at the announced model (z = {said})")
    elif min(scores) < _SIGN_Z:
        report.not_checked(check, f"no gradient is visible above the noise (z = {said}); use more records")
    else:
        report.holds(check, f"the gradient of each model is visible (z = {said})")


def _is_stale(groups: Sequence[_Group], spec: TaskSpec) -> bool:
    """Whether the second gradient was computed on the first model.

    The sums of the parts for the certain labels are then about 1 to −0.1. For a correct client the second is at least
    0.7 times the first, because its label is the second rarest of ten. So Φ(−z) bounds a false alarm.
    """
    first, second = (_part(spec, group.mean, group.label) for group in groups[:2])
    difference = float(second.sum() - _LEAST_PART * first.sum())
    std = float(first.size**0.5 * np.hypot(groups[1].mean_std, _LEAST_PART * groups[0].mean_std))
    return difference < -_SIGN_Z * std


def _check_clipping(report: ConformanceReport, groups: Sequence[_Group], spec: TaskSpec) -> None:
    """The norm of the part for the certain label, against C/√2 and the noise of the mean: noncentral chi-square."""
    check = "update.clipping"
    clip_norm = spec.privacy.mechanism.model_dump()["clip_norm"]
    wrong, seen = [], []
    for group in groups:
        own = _part(spec, group.mean, group.label)
        energy = float(np.square(own / group.mean_std).sum())
        limit = float(stats.ncx2.isf(ALPHA / len(groups), own.size, (clip_norm / group.mean_std) ** 2 / 2))
        norm = max(0.0, energy - own.size) ** 0.5 * group.mean_std
        seen.append(f"{norm:.2f}")
        if energy > limit:
            wrong.append(f"{norm:.2f}")
    bound = f"{clip_norm / 2**0.5:.2f}"
    report.expect(
        check,
        not wrong,
        f"the part for one label has norm {', '.join(wrong)}, and clipped records allow {bound}: clip the gradient of"
        " each record to the clip norm of the spec, then form the mean",
        f"norm {', '.join(seen)} of at most {bound}",
    )


def _signs(spec: TaskSpec, label: int) -> Vector:
    """A direction along which every gradient grows: up for the certain label, down for all others."""
    labels = spec.workload.labels
    tensors = unflatten(vector=np.full(spec.dimension, -1 / (labels - 1), dtype=np.float32), layout=spec.layout)
    for tensor in tensors.values():
        tensor[label] = 1.0
    return np.concatenate([tensor.ravel() for tensor in tensors.values()]).astype(np.float64)


def _part(spec: TaskSpec, vector: Vector, label: int) -> Vector:
    """The weights and the bias of one label."""
    tensors = unflatten(vector=vector.astype(np.float32), layout=spec.layout)
    return np.concatenate([np.atleast_1d(tensor[label]) for tensor in tensors.values()]).astype(np.float64)
