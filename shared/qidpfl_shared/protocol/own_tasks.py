"""Tasks of own data: what an operator states, completed with neutral values for everything else.

What an operator states has the structure of the spec. Labels, layout and convexity follow from it.
"""

from collections.abc import Mapping
from typing import Any

from ..core.money import MICRO
from . import layouts
from .presets import merged
from .task_spec import DataSpec, TaskSpec
from .wire import TensorLayout

# A client spends at most rho 0.2 over the lifetime of its records unless its owner raises that limit.
_LIFETIME_RHO, _HISTOGRAM_RHO = 0.2, 0.02
# What all rounds together may cost, so that an owner with the default limits can finish the task.
_ROUNDS_RHO = 0.16
_REWARD_MAX = 100


def own_task(stated: Mapping[str, Any], *, model: tuple[str, TensorLayout] | None = None) -> TaskSpec:
    """The task that an operator states, for example in a file. `model` is the name and the layout of the owners' model.

    Raises pydantic's `ValidationError` if the result is not a valid task.
    """
    data = DataSpec.model_validate(stated.get("data") or {})
    workload = stated.get("workload") or {}
    horizon = (stated.get("game") or {}).get("horizon", 20)
    facts = merged(_defaults(horizon if isinstance(horizon, int) and horizon > 0 else 20), stated)
    facts["workload"] = {
        "labels": len(data.label.shown),
        **({"convex": True} if workload.get("network", "linear") == "linear" else {}),
        **facts["workload"],
    }
    if model is not None:
        facts["workload"]["network"] = model[0]
    facts.setdefault("layout", _layout(facts["workload"], data, model))
    return TaskSpec.model_validate(facts).current


def _layout(workload: Mapping[str, Any], data: DataSpec, model: tuple[str, TensorLayout] | None) -> dict[str, Any]:
    if model is not None:
        return model[1].model_dump(mode="json")
    hidden = workload.get("hidden") or ()
    labels, network = workload["labels"], workload["network"]
    plain = isinstance(hidden, list | tuple) and all(isinstance(width, int) and width > 0 for width in hidden)
    known = None
    if plain and isinstance(labels, int) and labels > 0:
        known = layouts.of_records(network=network, hidden=tuple(hidden), record_shape=data.record_shape, labels=labels)
    # A wrong value gets the message of the check of its own field.
    return (known or layouts.linear(inputs=1, labels=1)).model_dump(mode="json")


def _defaults(horizon: int) -> dict[str, Any]:
    rho_max = _ROUNDS_RHO / horizon
    return {
        "workload": {"dataset": "own", "network": "linear"},
        # A uniform reference would refuse owners whose labels are naturally rare.
        "selection": {"rule": "all"},
        "game": {"horizon": horizon, "discount": 0.95, "privacy_weight": 300.0, "convexity": 0.02},
        "privacy": {
            "mechanism": {"name": "gradient_once", "clip_norm": 1.0},
            "histogram_rho": _HISTOGRAM_RHO,
            "lifetime_rho": _LIFETIME_RHO,
            "audit": "reject",
        },
        "aggregation": {"learning_rate": 1.0, "momentum": 0.8},
        "rounds": {"enrolment_window_s": 86_400.0, "quiet_s": 86_400.0, "min_clients": 3, "min_updates": 3},
        "bounds": {
            "rho_max": rho_max,
            "rho_min": rho_max / 1000,
            "privacy_value_min": 0.9,
            "privacy_value_max": 1.1,
            "reward_max_micro": _REWARD_MAX * MICRO,
            "reward_total_micro": _REWARD_MAX * horizon * MICRO,
        },
        "defence": {},
    }
