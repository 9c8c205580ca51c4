"""Impossible arguments: every public function of the core raises the one named error, which shows the value."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qidpfl_shared.core import (
    capped_reward,
    equilibrium,
    forecast,
    money,
    noise_audit,
    participation,
    planning,
    reward,
    round_rules,
    selection,
    utility,
)
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy import conversion, histogram, mechanisms, views

MODEL = {
    "dimension": 10,
    "horizon": 5,
    "accuracy_weight": 0.5,
    "smoothness": 1.0,
    "convexity": 0.1,
    "gradient_bound": 1.0,
    "discount": 0.9,
}
CLIENTS = {"privacy_values": [1.0, 1.1], "privacy_weight": 2.0}
DATA = {"sizes": [10, 20], "noise_scales": [0.1, 0.2]}
COST_MODEL = reward.CostModel(**MODEL)  # type: ignore[arg-type]
MARKET: dict[str, Any] = {"cost_model": COST_MODEL, "weighting": "size", **CLIENTS, **DATA}
STAGE_ONE = {"market": reward.Market(**MARKET), "round_number": 1}

CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (equilibrium.active_set, {"privacy_values": [1.0, 1.1]}),
    (equilibrium.equilibrium, {"reward": 1.0, **CLIENTS, "caps": [1.0, 1.0]}),
    (equilibrium.uncapped_shares, {"privacy_values": [1.0, 1.1]}),
    (equilibrium.budget_per_reward, CLIENTS),
    (equilibrium.theorem_1_literal, {"reward": 1.0, **CLIENTS}),
    (
        equilibrium.best_response,
        {"reward": 1.0, "total": 0.1, "privacy_value": 1.0, "privacy_weight": 1.0, "cap": 1.0},
    ),
    (equilibrium.reward_for_total, {"total": 0.1, **CLIENTS, "caps": [1.0, 1.0]}),
    (equilibrium.saturation_reward, {**CLIENTS, "caps": [1.0, 1.0]}),
    (
        utility.best_response_to_others,
        {"reward": 1.0, "others_total": 0.1, "privacy_value": 1.0, "privacy_weight": 1.0, "cap": 1.0},
    ),
    (utility.utilities, {"reward": 1.0, "budgets": [0.1, 0.1], **CLIENTS, "fixed_costs": [0.0, 0.0]}),
    (utility.regrets, {"reward": 1.0, "budgets": [0.1, 0.1], **CLIENTS, "caps": [1.0, 1.0]}),
    (utility.fixed_cost, {"data": 1.0, "computation": 1.0, "communication": 1.0, "data_weight": 1.0}),
    (utility.training_cost, {"rho": 0.1, "privacy_value": 1.0, "privacy_weight": 1.0, "fixed": 0.0}),
    (participation.invite, {"privacy_values": [1.0, 1.1], "min_share": 0.3, "min_clients": 2}),
    (participation.participation, {"reward": 1.0, **CLIENTS, "fixed_costs": [0.0, 0.0]}),
    (participation.reward_that_keeps_all, {"privacy_values": [1.0, 1.1], "fixed_costs": [0.0, 0.0]}),
    (reward.CostModel, MODEL),
    (reward.RewardRange, {"minimum": 1.0, "maximum": 2.0}),
    (planning.random_reward, {"reward_range": reward.RewardRange(maximum=1.0), "round_number": 1, "seed": 1}),
    (reward.aggregation_weights, {"weighting": "size", "budgets": [0.1, 0.1], **DATA}),
    (reward.noise_variance, {"weights": [0.5, 0.5], "budgets": [0.1, 0.1], "noise_scales": [0.1, 0.2]}),
    (reward.Market, MARKET),
    (reward.optimal_reward, STAGE_ONE),
    (reward.optimal_schedule, {"cost_model": COST_MODEL, "noise_cost": 1.0}),
    (
        reward.round_cost,
        {"cost_model": COST_MODEL, "round_number": 1, "reward": 1.0, "noise_variance": 1.0},
    ),
    (reward.server_cost, {"cost_model": COST_MODEL, "rewards": [1.0], "noise_variances": [1.0]}),
    (capped_reward.optimal_reward_capped, {**STAGE_ONE, "caps": [1.0, 1.0]}),
    (money.to_micro, {"amount": 1.0}),
    (money.from_micro, {"micro": 1}),
    (money.split_reward, {"reward_micro": 1, "declared": [0.1], "delivered": [True]}),
    (conversion.epsilon_from_rho, {"rho": 0.1, "delta": 1e-5}),
    (conversion.rho_from_epsilon, {"epsilon": 0.1, "delta": 1e-5}),
    (conversion.gaussian_delta, {"rho": 0.1, "epsilon": 0.1}),
    (histogram.histogram_noise_std, {"rho": 0.1}),
    (histogram.private_histogram, {"counts": [1, 2], "rho": 0.1, "standard_noise": [0.0, 0.0]}),
    (histogram.clean_histogram, {"noisy": [1.0, 2.0], "size": 3}),
    (histogram.distance_error, {"size": 10, "labels": 2, "rho": 0.1}),
    (views.central_rho, {"budgets": [0.1, 0.1], "weights": [0.5, 0.5], "noise_stds": [1.0, 1.0]}),
    (mechanisms.GradientOnceMechanism, {"clip_norm": 1.0}),
    (mechanisms.UpdateClipMechanism, {"clip_norm": 1.0}),
    (mechanisms.PaperLiteralMechanism, {"clip_norm": 1.0}),
    (mechanisms.NoisyEpochsMechanism, {"clip_norm": 1.0, "learning_rate": 0.1, "epochs": 1, "batch_size": 8}),
    (
        mechanisms.BoltOnMechanism.softmax_regression,
        {"feature_norm": 1.0, "learning_rate": 0.1, "epochs": 1, "batch_size": 8},
    ),
    (mechanisms.batch_sizes, {"size": 10, "batch_size": 3}),
    (noise_audit.alpha_per_upload, {"alpha": 0.1, "clients": 2, "rounds": 3}),
    (
        round_rules.Participant,
        {"privacy_value": 1.0, "size": 10, "rho_cap": 1.0, "remaining_rho": 1.0},
    ),
    (selection.label_distances, {"histograms": [[1, 2], [3, 4]], "reference": [0.5, 0.5]}),
    (selection.pooled_reference, {"histograms": [[1, 2], [3, 4]]}),
    (forecast.AccuracyCurve, {"ceiling": 0.9, "drop": 0.5, "rate": 2.0, "total_min": 0.1, "total_max": 1.0}),
    (forecast.fit_accuracy_curve, {"totals": [1.0, 2.0, 3.0], "accuracies": [0.1, 0.2, 0.25]}),
    (
        forecast.reward_range,
        {
            "curve": forecast.AccuracyCurve(ceiling=0.9, drop=0.5, rate=2.0),
            "target": 0.8,
            "target_max": 0.85,
            **CLIENTS,
            "caps": [5.0, 5.0],
        },
    ),
]
SCALARS = [math.nan, -1.0, "1", None, True, [1.0], 1j, 10**400, 10**5000]
# None stands for "no limit" or "no upper target" in these.
OPTIONAL = {"caps", "fixed_costs", "target_max"}
# A negative value means something in these.
SIGNED = {"standard_noise", "noisy", "accuracies", "ceiling", "target", "target_max"}


def broken_calls() -> list[Any]:
    cases = []
    for function, arguments in CALLS:
        for name, value in arguments.items():
            if isinstance(value, bool | str) or not isinstance(value, int | float | list):
                continue
            if isinstance(value, list):
                wrong: list[Any] = [
                    [*value[:-1], math.nan],
                    [value],
                    "abc",
                    [*value[:-1], "x"],
                    [*value[:-1], 1j],
                    None,
                    7,
                ]
                wrong += [[*value[:-1], -1.0]] if name not in SIGNED and name != "delivered" else []
                wrong += [[*value[:-1], True]] if name != "delivered" else []
            else:
                wrong = [item for item in SCALARS if not (item == -1.0 and name in SIGNED)]
            wrong = [item for item in wrong if not (item is None and name in OPTIONAL)]
            for item in wrong:
                shown = "huge" if isinstance(item, int) and item > 10**100 else str(item)[:20]
                label = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}-{name}-{shown}"
                cases.append(pytest.param(function, arguments, name, item, id=label))
    return cases


@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=lambda item: getattr(item, "__name__", ""))
def test_the_untouched_call_is_possible(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    function(**arguments)


@pytest.mark.parametrize(("function", "arguments", "name", "wrong"), broken_calls())
def test_one_impossible_argument_raises_the_named_error(
    function: Callable[..., Any], arguments: dict[str, Any], name: str, wrong: Any
) -> None:
    with pytest.raises(ImpossibleArgument) as raised:
        function(**(arguments | {name: wrong}))
    assert name in str(raised.value) or name.rstrip("s") in str(raised.value)


@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=lambda item: getattr(item, "__name__", ""))
def test_lengths_that_differ_raise_the_named_error(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    vectors = [name for name, value in arguments.items() if isinstance(value, list)]
    for name in vectors[1:]:
        with pytest.raises(ImpossibleArgument):
            function(**(arguments | {name: [*arguments[name], arguments[name][-1]]}))


@pytest.mark.parametrize("weight", [1.0, 1.5, -0.1])
def test_the_accuracy_weight_stays_below_one(weight: float) -> None:
    with pytest.raises(ImpossibleArgument, match=f"accuracy_weight = {weight}"):
        reward.CostModel(**(MODEL | {"accuracy_weight": weight}))  # type: ignore[arg-type]


@pytest.mark.parametrize("discount", [0.0, 1.01, 1e-300])
def test_the_discount_is_a_factor_that_leaves_something(discount: float) -> None:
    with pytest.raises(ImpossibleArgument, match="discount"):
        reward.CostModel(**(MODEL | {"discount": discount}))  # type: ignore[arg-type]


def test_the_message_names_the_place_and_shows_the_value() -> None:
    with pytest.raises(ImpossibleArgument, match=r"privacy_values\[2\] = -3.0: must be greater than 0"):
        equilibrium.active_set(privacy_values=[1, 2, -3])
    with pytest.raises(ImpossibleArgument, match=r"len\(caps\) = 1: must be 2"):
        equilibrium.equilibrium(reward=1, privacy_values=[1, 2], privacy_weight=1, caps=[1])


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(ImpossibleArgument) as raised:
        money.to_micro("9" * 10_000)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 200


def test_arrays_given_are_never_changed() -> None:
    values, caps = np.array([1.0, 1.2, 0.9]), np.array([0.1, 0.1, 0.1])
    equilibrium.equilibrium(reward=10, privacy_values=values, privacy_weight=1, caps=caps)
    assert values.tolist() == [1.0, 1.2, 0.9]
    assert caps.tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (
            reward.aggregation_weights,
            {"weighting": "median", "budgets": [0.1], "sizes": [1], "noise_scales": [1.0]},
            "weighting",
        ),
        (reward.Market, MARKET, "weighting"),
        (conversion.epsilon_from_rho, {"rho": 0.1, "delta": 1e-5}, "reading"),
        (
            selection.select,
            {"rule": selection.All(), "histograms": [[1]], "reference": [1.0], "min_clients": 1},
            "shortfall",
        ),
    ],
)
def test_an_unknown_choice_raises_the_named_error(
    function: Callable[..., Any], arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(ImpossibleArgument, match=f"{name} = .*must be one of"):
        function(**(arguments | {name: "nothing known"}))


@pytest.mark.parametrize("extreme", [1e-200, 1e200])
def test_constants_whose_squares_floats_cannot_hold_are_refused(extreme: float) -> None:
    with pytest.raises(ImpossibleArgument, match="clip_norm"):
        mechanisms.GradientOnceMechanism(clip_norm=extreme)
    with pytest.raises(ImpossibleArgument, match="convexity"):
        reward.CostModel(**(MODEL | {"convexity": extreme}))  # type: ignore[arg-type]
    with pytest.raises(ImpossibleArgument, match="noise_std"):
        noise_audit.NoiseAudit(dimension=1, noise_std=extreme, signal_bound=1.0, alpha=0.1)


def test_truth_values_are_not_taken_from_text() -> None:
    with pytest.raises(ImpossibleArgument, match="set_aside"):
        round_rules.Participant(privacy_value=1.0, size=1, set_aside="no")  # type: ignore[arg-type]
