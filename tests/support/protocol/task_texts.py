"""A valid task as JSON, changes of it, and the presets."""

import copy
import json
from collections.abc import Callable

import pytest

from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json, codes_of

Reader = Callable[[Json], TaskSpec]

TASK: Json = {
    "workload": {"dataset": "three-labels", "network": "linear", "labels": 3, "convex": True},
    "layout": {"tensors": [{"name": "weight", "shape": [3, 4]}, {"name": "bias", "shape": [3]}]},
    "game": {"horizon": 20, "discount": 0.93, "privacy_weight": 30.0, "convexity": 0.03},
    "privacy": {"mechanism": {"name": "gradient_once", "clip_norm": 1.0}},
    "bounds": {"rho_max": 0.5, "reward_max_micro": 300_000_000, "reward_total_micro": 6_000_000_000},
}
RANGE = {"minimum_micro": 1_000_000, "maximum_micro": 2_000_000}
TRAINING = {"learning_rate": 0.01, "epochs": 2, "batch_size": 64}
UPDATE_MECHANISMS: dict[str, Json] = {
    "noisy_epochs": TRAINING | {"clip_norm": 1.0},
    "update_clip": TRAINING | {"clip_norm": 1.0},
    "paper_literal": TRAINING | {"clip_norm": 1.0},
    "bolt_on": TRAINING | {"feature_norm": 10.0},
}
# One partition of each kind that contradicts nothing.
PARTITIONS: dict[str, Json] = {
    "iid": {"kind": "iid", "clients": 5},
    "shards": {"kind": "shards", "clients": 5},
    "dirichlet_class": {"kind": "dirichlet_class", "clients": 5, "concentration": 1.0},
    "dirichlet_client": {"kind": "dirichlet_client", "clients": 5, "concentration": 1.0},
    "quality_mix": {"kind": "quality_mix", "clients": 5, "concentration": 8.0, "two_class_ordinals": [0, 4]},
}
# The presets, and the number of parameters of their networks.
DIMENSIONS = {
    "digits": 650,
    "mnist": 7850,
    "mnist-bad-clients": 7850,
    "mnist-paper": 7850,
    "mnist-paper-heuristic": 7850,
    "emnist": 48846,
    "emnist-small": 48846,
    "cifar10": 62006,
    "cifar10-paper": 1068298,
}
every_preset = pytest.mark.parametrize("name", DIMENSIONS)


def task(changes: Json) -> Json:
    """The task above with some values replaced, by their dotted paths."""
    changed = copy.deepcopy(TASK)
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = changed
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return changed


def read_text(text: Json) -> TaskSpec:
    return TaskSpec.model_validate_json(json.dumps(text))


MECHANISMS: dict[str, Json] = {"gradient_once": {"clip_norm": 1.0}, **UPDATE_MECHANISMS}
PARAMETERS = [
    (name, parameter)
    for name, parameters in MECHANISMS.items()
    for parameter in parameters
    if parameter in ("clip_norm", "learning_rate", "feature_norm")
]


def codes_by_field(read: Reader, fields: list[str], value: object) -> dict[str, list[str]]:
    return {field: codes_of(read, task({field: value})) for field in fields}
