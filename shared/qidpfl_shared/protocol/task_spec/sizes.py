"""A preset for another number of clients or rounds: more shards, more places, and rewards for all rounds."""

import math
from collections.abc import Mapping
from typing import Any

from ...core.privacy.histogram import histogram_noise_std
from .. import layouts
from .parts import Partition, SelectionRule
from .spec import TaskSpec

# The largest L1 distance of two distributions: a threshold of this refuses no client.
_LARGEST_DISTANCE = 2.0


def sized(spec: TaskSpec, *, clients: int | None = None, rounds: int | None = None) -> dict[str, Any]:
    """Return the overrides that give a task this many clients and rounds.

    A testbed is divided into as many shards. The task starts when all clients are ready, and needs no more than there
    are. Shards of fewer records have noisier label histograms, so the distance threshold grows by the larger error.

    >>> from qidpfl_shared.protocol.presets import preset
    >>> sized(preset("digits"), rounds=5)["game"]
    {'horizon': 5}
    """
    changes: dict[str, Any] = {}
    if clients is not None:
        changes |= _for_clients(spec, clients)
    if rounds is not None:
        largest = spec.bounds.reward_max_micro
        changes["game"] = {"horizon": rounds}
        changes["bounds"] = {**changes.get("bounds", {}), "reward_total_micro": largest * rounds}
    return changes


def _for_clients(spec: TaskSpec, clients: int) -> dict[str, Any]:
    needed = max(2, min(spec.rounds.min_clients, clients))
    changes: dict[str, Any] = {
        "rounds": {
            "expected_clients": max(needed, clients),
            "min_clients": needed,
            "min_updates": min(spec.rounds.min_updates, needed),
        },
        "bounds": {"clients_max": max(spec.bounds.clients_max, clients)},
    }
    partition = spec.workload.partition
    if partition is not None and clients != partition.clients:
        changes["workload"] = {"partition": _divided(partition, clients, most_skewed=clients - needed)}
        if spec.selection.rule is SelectionRule.THRESHOLD:
            changes["selection"] = {"distance_threshold": _threshold(spec, partition, clients)}
    return changes


def _divided(partition: Partition, clients: int, *, most_skewed: int) -> Mapping[str, Any]:
    """The partition for this many clients, with two-label clients at the same places in each group of the preset.

    There are at most `most_skewed` of them: the selection may refuse them all and must still find enough clients.
    """
    groups = range(0, clients, partition.clients)
    places = [first + place for first in groups for place in partition.two_class_ordinals]
    skewed = [place for place in places if place < clients][: max(0, most_skewed)]
    return {"clients": clients, "two_class_ordinals": skewed}


def _threshold(spec: TaskSpec, partition: Partition, clients: int) -> float:
    """The threshold of the preset, and what smaller shards add to the distance of a client like the others."""
    facts = layouts.DATA_SETS.get(spec.workload.dataset)
    threshold = spec.selection.distance_threshold
    if facts is None or clients <= partition.clients:
        return threshold
    more = _distance_by_chance(spec, facts.records // clients) - _distance_by_chance(
        spec, facts.records // partition.clients
    )
    return round(min(_LARGEST_DISTANCE, threshold + max(0.0, more)), 2)


def _distance_by_chance(spec: TaskSpec, size: int) -> float:
    """The expected label distance of random records: by the draw of so few records, and by the histogram's noise."""
    labels, size = spec.workload.labels, max(1, size)
    rho = spec.privacy.histogram_rho
    noise = 0.0 if rho is None else labels * math.sqrt(2 / math.pi) * histogram_noise_std(rho=rho) / size
    return math.sqrt(2 * labels / (math.pi * size)) + noise
