"""The examples in docstrings of public modules run, and their output is what the docstring shows."""

import doctest
import importlib

import pytest

MODULES = [
    "qidpfl.task",
    "qidpfl_client.api",
    "qidpfl_client.noise",
    "qidpfl_client.owner",
    "qidpfl_client.sdk.admin",
    "qidpfl_client.sdk.client",
    "qidpfl_client.sdk.credentials",
    "qidpfl_client.sdk.retries",
    "qidpfl_client.sdk.connection",
    "qidpfl_flower.app_loading",
    "qidpfl_flower.flower_task",
    "qidpfl_flower.paid_rounds",
    "qidpfl_flower.parameters",
    "qidpfl_flower.records",
    "qidpfl_shared.core.aggregation",
    "qidpfl_shared.core.averaging.linear_systems",
    "qidpfl_shared.core.averaging.optimal_weights",
    "qidpfl_shared.core.averaging.post_processing",
    "qidpfl_shared.core.capped_reward",
    "qidpfl_shared.core.custom_rules",
    "qidpfl_shared.core.equilibrium",
    "qidpfl_shared.core.forecast",
    "qidpfl_shared.core.label_union",
    "qidpfl_shared.core.markets.auction",
    "qidpfl_shared.core.markets.schedules",
    "qidpfl_shared.core.money",
    "qidpfl_shared.core.noise_audit",
    "qidpfl_shared.core.participation",
    "qidpfl_shared.core.planner.noise_curve",
    "qidpfl_shared.core.planner.play",
    "qidpfl_shared.core.planner.quote",
    "qidpfl_shared.core.planning",
    "qidpfl_shared.core.privacy.account",
    "qidpfl_shared.core.privacy.conversion",
    "qidpfl_shared.core.privacy.histogram",
    "qidpfl_shared.core.privacy.mechanisms",
    "qidpfl_shared.core.privacy.views",
    "qidpfl_shared.core.reward",
    "qidpfl_shared.core.selection",
    "qidpfl_shared.core.utility",
    "qidpfl_shared.plugin_loader",
    "qidpfl_shared.protocol.presets",
    "qidpfl_shared.tracing",
    "qidpfl_shared.workloads.custom",
    "qidpfl_shared.workloads.records",
    "qidpfl_shared.workloads.workload",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, f"{name} has no example"
    assert result.failed == 0
