"""The spec of a task for Flower nodes, and which specs the strategy can run."""

from collections.abc import Mapping
from typing import Any

from qidpfl_client.errors import Misconfigured
from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.mechanism_specs import PaperLiteral, UpdateClip
from qidpfl_shared.protocol.presets import merged, preset
from qidpfl_shared.protocol.task_spec import AuditMode, SelectionRule, TaskSpec
from qidpfl_shared.protocol.wire import TensorLayout

from .parameters import check_trained_only


def flower_task(
    layout: TensorLayout,
    *,
    labels: int,
    clients: int,
    rounds: int,
    clip_norm: float = 1.0,
    overrides: Mapping[str, Any] | None = None,
) -> TaskSpec:
    """The task of a Flower app with this model: `update_clip`, selection by label distance, the game of the paper.

    `overrides` have the structure of the spec, as those of presets have.

    >>> import numpy as np
    >>> from qidpfl_flower.parameters import layout_of_arrays
    >>> task = flower_task(layout_of_arrays({"weight": np.zeros((10, 4))}), labels=10, clients=5, rounds=3)
    >>> task.game.horizon, task.privacy.mechanism.name, task.rounds.min_clients
    (3, 'update_clip', 3)
    """
    # An app trains by its own settings: those of the mechanism are placeholders.
    mechanism = UpdateClip(clip_norm=clip_norm, learning_rate=1.0, batch_size=1)
    base: dict[str, Any] = {
        "workload": {"dataset": "flower", "network": "flower", "labels": labels},
        "layout": layout.model_dump(mode="json"),
        "selection": {"rule": SelectionRule.THRESHOLD.value},
        "privacy": {"mechanism": mechanism.model_dump(mode="json"), "audit": AuditMode.REJECT.value},
        "aggregation": {"learning_rate": 1.0, "momentum": 0.0},
        "defence": None,
    }
    return preset("own", merged(base, overrides or {}), clients=clients, rounds=rounds)


def check_supported(spec: TaskSpec) -> None:
    """Raise `Misconfigured` for a task that the strategy cannot run as its spec says."""
    check_trained_only(spec.layout)
    problems = {
        "defence is part of the coordinator of QI-DPFL: leave it out (null)": spec.defence is not None,
        "aggregation.rule must be left out: updates are averaged": spec.aggregation.rule is not None,
        "markets other than the contest need the coordinator of QI-DPFL": spec.market is not MarketKind.CONTEST,
        "a task without a game has no budgets: use FedAvg of Flower": spec.game.policy is RewardPolicy.NONE,
        "rules of your own need the coordinator of QI-DPFL": spec.game.policy is RewardPolicy.OWN
        or spec.selection.rule is SelectionRule.OWN,
        f"privacy.mechanism {spec.privacy.mechanism.name} bounds every step of a training that Flower's apps do by"
        " themselves: use update_clip": not isinstance(spec.privacy.mechanism, UpdateClip | PaperLiteral),
    }
    for problem, is_met in problems.items():
        if is_met:
            raise Misconfigured(f"the strategy cannot run this task: {problem}")
