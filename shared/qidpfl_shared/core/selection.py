"""Quality-aware selection: the distance of each client's labels to a reference, and which clients are selected.

The paper's "EMD" (eq. 11) is the L1 distance of label frequencies: twice the total variation, from 0 to 2.

All functions and rules raise `ImpossibleArgument` for a number outside its range and for tables of different widths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import arguments
from .arguments import ImpossibleArgument, Mask, Numbers, Vector
from .custom_rules import CustomSelect, SelectionQuestion, ask_selection, read_only
from .label_union import nearest_union

# A client exactly at the threshold passes, independent of rounding.
_ROUNDING = 1e-12
LARGEST_DISTANCE = 2.0

Histograms = Sequence[Numbers] | npt.NDArray[Any]


class SelectionStatus(StrEnum):
    """Whether there are enough clients, and whether clients were added to the rule's choice."""

    SELECTED = "selected"
    FILLED_UP = "filled_up"
    TOO_FEW_CLIENTS = "too_few_clients"


class Shortfall(StrEnum):
    """What happens if fewer than the minimum pass: fail, or add the nearest of the others."""

    FAIL = "fail"
    NEAREST = "nearest"


class Rule(Protocol):
    """A rule chooses from all clients with records."""

    def keep(self, question: SelectionQuestion) -> Mask: ...


@dataclass(frozen=True)
class Threshold:
    """The paper's rule: a client passes if its label distance does not exceed the threshold."""

    distance_threshold: float

    def __post_init__(self) -> None:
        if not 0 <= arguments.real("distance_threshold", self.distance_threshold) <= LARGEST_DISTANCE:
            raise ImpossibleArgument("distance_threshold", self.distance_threshold, "must lie in [0, 2]")

    def keep(self, question: SelectionQuestion) -> Mask:
        passes: Mask = question.label_distances <= self.distance_threshold + _ROUNDING
        return passes


@dataclass(frozen=True)
class All:
    """All clients."""

    def keep(self, question: SelectionQuestion) -> Mask:
        return np.ones(question.clients, dtype=np.bool_)


@dataclass(frozen=True)
class Union:
    """The set of at least `min_clients` clients whose *pooled* labels are nearest to the reference.

    The model is trained on the union, so the distance of a single client says little. (Not in the paper.)
    """

    min_clients: int

    def __post_init__(self) -> None:
        arguments.whole("min_clients", self.min_clients, minimum=1)

    def keep(self, question: SelectionQuestion) -> Mask:
        return nearest_union(question.label_counts, question.reference, self.min_clients)


@dataclass(frozen=True)
class Random:
    """A number of clients, chosen at random; all if there are fewer. A control for the other rules."""

    clients: int
    seed: int

    def __post_init__(self) -> None:
        arguments.whole("clients", self.clients, minimum=1)
        if arguments.whole("seed", self.seed) >= 2**32:
            raise ImpossibleArgument("seed", self.seed, "must be below 2^32")

    def keep(self, question: SelectionQuestion) -> Mask:
        # numpy guarantees that the stream of this old generator never changes, so a selection can be repeated.
        order = np.random.RandomState(self.seed).permutation(question.clients)
        kept = np.zeros(question.clients, dtype=np.bool_)
        kept[order[: self.clients]] = True
        return kept


@dataclass(frozen=True)
class Custom:
    """The clients that a user's function selects."""

    choose: CustomSelect

    def keep(self, question: SelectionQuestion) -> Mask:
        return ask_selection(self.choose, question)


@dataclass(frozen=True)
class Selection:
    """The selected clients, the label distance of each client, and the clients added to reach the minimum."""

    status: SelectionStatus
    selected: Mask
    filled_up: Mask
    label_distances: Vector
    reference: Vector


def uniform_reference(*, labels: int) -> Vector:
    """Return equal frequencies for all labels.

    >>> uniform_reference(labels=4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    labels = arguments.whole("labels", labels, minimum=1)
    return np.full(labels, 1 / labels)


def given_reference(*, weights: Numbers) -> Vector:
    """Return a known distribution, given as frequencies or counts. Single entries may be 0, but not all.

    >>> given_reference(weights=[30, 10]).tolist()
    [0.75, 0.25]
    """
    values = arguments.non_negative_vector("reference", weights)
    total = float(values.sum())
    if not 0 < total < np.inf:
        raise ImpossibleArgument("sum(reference)", total, "must be positive and finite")
    reference: Vector = values / total
    return reference


def pooled_reference(*, histograms: Histograms) -> Vector:
    """Return the label frequencies of all clients together; uniform if there is no record.

    >>> pooled_reference(histograms=[[10, 0], [20, 10]]).tolist()
    [0.75, 0.25]
    """
    counts = arguments.count_table("histograms", histograms, width=None)
    totals = counts.sum(axis=0)
    if not totals.any():
        return uniform_reference(labels=counts.shape[1])
    return given_reference(weights=totals)


def label_distances(*, histograms: Histograms, reference: Numbers) -> Vector:
    """Return each client's L1 distance to the reference, in [0, 2]. A client without records has distance 2.

    >>> label_distances(histograms=[[5, 5], [10, 0], [0, 0]], reference=[0.5, 0.5]).tolist()
    [0.0, 1.0, 2.0]
    """
    target = given_reference(weights=reference)
    counts = arguments.count_table("histograms", histograms, width=target.size)
    sizes = counts.sum(axis=1, keepdims=True)
    frequencies = np.divide(counts, sizes, out=np.zeros_like(counts), where=sizes > 0)
    distances: Vector = np.minimum(np.abs(frequencies - target).sum(axis=1), LARGEST_DISTANCE)
    distances[sizes[:, 0] == 0] = LARGEST_DISTANCE
    return distances


def select(
    *,
    rule: Rule,
    histograms: Histograms,
    reference: Numbers,
    min_clients: int,
    shortfall: Shortfall = Shortfall.FAIL,
    sizes: Numbers | None = None,
    privacy_values: Numbers | None = None,
) -> Selection:
    """Apply a rule to the label histograms of all clients. A client without records is never selected.

    If fewer than `min_clients` pass, no client is selected and the status says so. With `shortfall` `nearest` the
    nearest of the other clients are added instead (ties: the earlier client). Rule `Custom` needs `sizes` and
    `privacy_values`; the other rules do not use them.

    Raises `ImpossibleArgument`, and `CustomRuleFailed` if the user's rule fails.

    >>> chosen = select(
    ...     rule=Threshold(0.75), histograms=[[50, 50], [60, 40], [100, 0]], reference=[0.5, 0.5], min_clients=2
    ... )
    >>> chosen.status.value, chosen.selected.tolist(), chosen.label_distances.round(3).tolist()
    ('selected', [True, True, False], [0.0, 0.2, 1.0])
    """
    min_clients = arguments.whole("min_clients", min_clients, minimum=1)
    shortfall = arguments.choice("shortfall", shortfall, Shortfall)
    target = given_reference(weights=reference)
    counts = arguments.count_table("histograms", histograms, width=target.size)
    distances = label_distances(histograms=counts, reference=target)
    has_records = counts.sum(axis=1) > 0
    if isinstance(rule, Custom) and (sizes is None or privacy_values is None):
        raise ImpossibleArgument("rule", rule, "needs sizes and privacy_values")
    # The built-in rules do not use these: take the counted records, and one price for all clients.
    sizes = counts.sum(axis=1) if sizes is None else arguments.size_vector("sizes", sizes, length=len(counts))
    values = np.ones(len(counts)) if privacy_values is None else privacy_values
    prices = arguments.positive_vector("privacy_values", values, length=len(counts))
    question = SelectionQuestion(
        label_counts=read_only(counts[has_records]),
        label_distances=read_only(distances[has_records]),
        reference=read_only(target),
        sizes=read_only(sizes[has_records]),
        privacy_values=read_only(prices[has_records]),
        min_clients=min_clients,
    )
    selected = np.zeros(distances.size, dtype=np.bool_)
    selected[has_records] = rule.keep(question)
    return _completed(selected, has_records, distances, target, min_clients, shortfall)


def _completed(
    selected: Mask, has_records: Mask, distances: Vector, reference: Vector, min_clients: int, shortfall: Shortfall
) -> Selection:
    """Add the nearest clients if there are too few and the task allows it, and set the status."""
    filled_up = np.zeros(distances.size, dtype=np.bool_)
    if shortfall is Shortfall.NEAREST:
        filled_up = _nearest(has_records & ~selected, distances, min_clients - int(np.count_nonzero(selected)))
    status = SelectionStatus.FILLED_UP if filled_up.any() else SelectionStatus.SELECTED
    if np.count_nonzero(selected | filled_up) < min_clients:
        status = SelectionStatus.TOO_FEW_CLIENTS
        selected, filled_up = np.zeros_like(selected), np.zeros_like(filled_up)
    return Selection(
        status=status,
        selected=selected | filled_up,
        filled_up=filled_up,
        label_distances=distances,
        reference=reference,
    )


def _nearest(candidates: Mask, distances: Vector, count: int) -> Mask:
    """Return the `count` nearest candidates. Ties: the earlier client."""
    places = np.flatnonzero(candidates)
    nearest = places[np.argsort(distances[places], kind="stable")]
    chosen = np.zeros(distances.size, dtype=np.bool_)
    chosen[nearest[: max(0, count)]] = True
    return chosen
