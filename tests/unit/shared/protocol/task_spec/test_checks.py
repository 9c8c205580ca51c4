"""Rules between the fields of a task: what is inconsistent, and what just fits."""

import math

import pytest

from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.protocol.presets import PRESETS
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json, codes_of
from support.protocol.task_texts import RANGE, TASK, UPDATE_MECHANISMS, Reader, task

# Every paying policy with what it needs, so that only the noise is at fault.
PAYING: dict[str, Json] = {
    "optimal": {},
    "max": {"reward_range": RANGE},
    "random": {"reward_range": RANGE},
    "fixed": {"fixed_reward_micro": 5},
    "own": {"own_rules": "mine"},
}


def test_a_task_without_contradictions_is_admissible(read: Reader) -> None:
    assert read(TASK).dimension == 15


@pytest.mark.parametrize("name", PRESETS)
def test_a_built_in_network_on_a_built_in_data_set_has_its_own_layout_only(read: Reader, name: str) -> None:
    spec = PRESETS[name]().model_dump(mode="json")
    assert codes_of(read, spec) == []
    for tensors in ([{"name": "w", "shape": []}], spec["layout"]["tensors"][::-1], spec["layout"]["tensors"][:-1]):
        assert codes_of(read, spec | {"layout": {"tensors": tensors}}) == ["inconsistent_spec"]


def test_a_built_in_data_set_has_its_own_labels_only(read: Reader) -> None:
    spec = PRESETS["digits"]().model_dump(mode="json")
    assert codes_of(read, spec | {"workload": spec["workload"] | {"labels": 9}}) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "own", [{"dataset": "none"}, {"dataset": "module:Class"}, {"network": "theirs"}, {"dataset": "none", "labels": 9}]
)
def test_custom_data_sets_and_networks_may_have_any_layout(read: Reader, own: Json) -> None:
    spec = PRESETS["digits"]().model_dump(mode="json")
    layout = {"tensors": [{"name": "w", "shape": []}]}
    assert codes_of(read, spec | {"workload": spec["workload"] | own, "layout": layout}) == []


@pytest.mark.parametrize("policy", ["max", "random"])
def test_policies_that_draw_from_a_range_need_one(read: Reader, policy: str) -> None:
    assert codes_of(read, task({"game.policy": policy})) == ["reward_range_required"]


@pytest.mark.parametrize("policy", ["max", "random"])
def test_an_infinite_reward_cannot_be_written(read: Reader, policy: str) -> None:
    reward_range = {"minimum_micro": 0, "maximum_micro": math.inf}
    assert codes_of(read, task({"game.policy": policy, "game.reward_range": reward_range})) == ["int_type"]


def test_policy_fixed_needs_its_reward(read: Reader) -> None:
    assert codes_of(read, task({"game.policy": "fixed"})) == ["reward_required"]


@pytest.mark.parametrize("policy", ["optimal", "max", "random"])
def test_no_other_policy_takes_a_fixed_reward(read: Reader, policy: str) -> None:
    changes = {"game.policy": policy, "game.reward_range": RANGE, "game.fixed_reward_micro": 5}
    assert codes_of(read, task(changes)) == ["reward_required"]


def test_policy_none_takes_no_fixed_reward(read: Reader) -> None:
    changes = {"game.policy": "none", "privacy.noise": False, "game.fixed_reward_micro": 0}
    assert codes_of(read, task(changes)) == ["reward_required"]


def test_policy_fixed_takes_a_schedule_instead_of_one_reward(read: Reader) -> None:
    schedule = {"game.policy": "fixed", "game.reward_schedule_micro": [7] * 20}
    assert read(task(schedule)).game.reward_schedule_micro == (7,) * 20
    assert codes_of(read, task(schedule | {"game.fixed_reward_micro": 5})) == ["reward_required"]
    assert codes_of(read, task(schedule | {"game.policy": "optimal"})) == ["reward_required"]
    unpaid = {"game.policy": "none", "privacy.noise": False}
    assert codes_of(read, task(schedule | unpaid)) == ["reward_required"]


@pytest.mark.parametrize("rounds", [0, 19, 21])
def test_a_schedule_has_one_reward_for_every_round(read: Reader, rounds: int) -> None:
    changes = {"game.policy": "fixed", "game.reward_schedule_micro": [7] * rounds}
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize("reward", [-1, 1.5, "1", None, True, MAX_MICRO + 1])
def test_every_reward_of_a_schedule_is_money(read: Reader, reward: object) -> None:
    changes = {"game.policy": "fixed", "game.reward_schedule_micro": [*[7] * 19, reward]}
    assert len(codes_of(read, task(changes))) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"game.policy": "own"},
        {"game.own_rules": "mine"},
        {"selection.rule": "own"},
        {"selection.own_rules": "mine"},
        {"selection.rule": "random", "selection.own_rules": "mine", "selection.random_clients": 3, "selection.seed": 1},
    ],
    ids=str,
)
def test_custom_rules_are_named_if_and_only_if_they_are_used(read: Reader, changes: Json) -> None:
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "changes",
    [
        {"selection.rule": "random"},
        {"selection.rule": "random", "selection.random_clients": 3},
        {"selection.rule": "random", "selection.seed": 3},
        {"selection.random_clients": 3},
        {"selection.seed": 0},
        {"selection.rule": "random", "selection.seed": 3, "selection.random_clients": 2},
    ],
    ids=str,
)
def test_a_random_choice_needs_a_seed_and_at_least_min_clients(read: Reader, changes: Json) -> None:
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "selection", [{"rule": "random", "random_clients": 3, "seed": 0}, {"rule": "own", "own_rules": "mine"}], ids=str
)
def test_rules_that_compare_all_clients_accept_no_late_joiners(read: Reader, selection: Json) -> None:
    assert codes_of(read, task({"selection": selection})) == []
    assert codes_of(read, task({"selection": selection, "rounds.late_joiners": True})) == ["inconsistent_spec"]


def test_newer_fields_are_not_in_the_json_of_a_task_that_does_not_use_them() -> None:
    sections = TaskSpec.model_validate(TASK).model_dump(mode="json")
    assert not {"random_clients", "seed", "own_rules"} & sections["selection"].keys()
    assert not {"reward_schedule_micro", "own_rules"} & sections["game"].keys()


@pytest.mark.parametrize(("policy", "needs"), PAYING.items())
def test_paying_without_noise_is_refused(read: Reader, policy: str, needs: Json) -> None:
    game = TASK["game"] | {"policy": policy} | needs
    assert codes_of(read, task({"game": game, "privacy.noise": False})) == ["paid_without_noise"]


@pytest.mark.parametrize(("policy", "needs"), PAYING.items())
def test_paying_with_noise_is_admissible(read: Reader, policy: str, needs: Json) -> None:
    assert read(task({"game": TASK["game"] | {"policy": policy} | needs})).game.policy == policy


def test_noise_without_a_game_is_refused(read: Reader) -> None:
    assert codes_of(read, task({"game.policy": "none"})) == ["noise_without_budget"]


def test_an_empty_reward_range_is_inconsistent(read: Reader) -> None:
    empty = {"minimum_micro": 2, "maximum_micro": 1}
    assert codes_of(read, task({"game.reward_range": empty})) == ["inconsistent_spec"]


def test_a_reward_range_of_one_reward_is_admissible(read: Reader) -> None:
    single = {"minimum_micro": 2, "maximum_micro": 2}
    assert read(task({"game.reward_range": single})).game.reward_range is not None


def test_a_discount_that_leaves_nothing_of_the_last_round_is_inconsistent(read: Reader) -> None:
    assert codes_of(read, task({"game.discount": 1e-5})) == ["inconsistent_spec"]


def test_a_learning_rate_beyond_the_proof_of_bolt_on_is_inconsistent(read: Reader) -> None:
    bolt_on = {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"], "learning_rate": 0.0397}
    assert codes_of(read, task({"privacy.mechanism": bolt_on})) == ["inconsistent_spec"]


def test_the_largest_learning_rate_of_the_proof_is_admissible(read: Reader) -> None:
    bolt_on = {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"], "learning_rate": 4 / 101}
    assert read(task({"privacy.mechanism": bolt_on})).privacy.mechanism.name == "bolt_on"


@pytest.mark.parametrize("step", [{"learning_rate": 2.0}, {"learning_rate": 0.5}, {"momentum": 0.8}])
@pytest.mark.parametrize(("name", "parameters"), UPDATE_MECHANISMS.items())
def test_finished_updates_take_no_server_step(read: Reader, name: str, parameters: Json, step: Json) -> None:
    changes = {"privacy.mechanism": {"name": name, **parameters}, "aggregation": step}
    assert codes_of(read, task(changes)) == ["server_step_fixed"]


def test_a_gradient_takes_any_server_step(read: Reader) -> None:
    assert read(task({"aggregation": {"learning_rate": 3.0, "momentum": 0.9}})).aggregation.momentum == 0.9


@pytest.mark.parametrize("convex", [{"convex": False}, {}], ids=["said", "unsaid"])
def test_bolt_on_needs_a_convex_network(read: Reader, convex: Json) -> None:
    workload = {"dataset": "three-labels", "network": "lenet", "labels": 3, **convex}
    changes = {"workload": workload, "privacy.mechanism": {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"]}}
    assert codes_of(read, task(changes)) == ["convex_network_required"]


@pytest.mark.parametrize("name", ["noisy_epochs", "update_clip", "paper_literal"])
def test_other_mechanisms_take_any_network(read: Reader, name: str) -> None:
    changes = {"workload.convex": False, "privacy.mechanism": {"name": name, **UPDATE_MECHANISMS[name]}}
    assert read(task(changes)).privacy.mechanism.name == name


def test_a_given_reference_needs_its_weights(read: Reader) -> None:
    assert codes_of(read, task({"selection.reference": "given"})) == ["inconsistent_spec"]


@pytest.mark.parametrize("reference", ["uniform", "pooled"])
def test_no_other_reference_takes_weights(read: Reader, reference: str) -> None:
    selection = {"reference": reference, "reference_weights": [1.0, 1.0, 1.0]}
    assert codes_of(read, task({"selection": selection})) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([], id="none"),
        pytest.param([1.0, 1.0], id="too few"),
        pytest.param([1.0, 1.0, 1.0, 1.0], id="too many"),
        pytest.param([0.0, 0.0, 0.0], id="all zero"),
    ],
)
def test_reference_weights_that_are_no_distribution_of_the_labels_are_inconsistent(
    read: Reader, weights: list[float]
) -> None:
    selection = {"reference": "given", "reference_weights": weights}
    assert codes_of(read, task({"selection": selection})) == ["inconsistent_spec"]


def test_a_label_may_be_missing_from_the_reference(read: Reader) -> None:
    selection = {"reference": "given", "reference_weights": [0.0, 0.0, 1e-300]}
    assert read(task({"selection": selection})).label_reference([]).tolist() == [0.0, 0.0, 1.0]


def test_the_largest_reference_weights_are_a_distribution(read: Reader) -> None:
    selection = {"reference": "given", "reference_weights": [1e15, 1e15, 2e-9]}
    assert read(task({"selection": selection})).label_reference([]).tolist() == pytest.approx([0.5, 0.5, 1e-24])


@pytest.mark.parametrize("weight", [math.nextafter(1e15, math.inf), 1e300, 10**30], ids=repr)
def test_a_reference_weight_has_an_upper_bound(read: Reader, weight: float) -> None:
    selection = {"reference": "given", "reference_weights": [1.0, 1.0, weight]}
    assert codes_of(read, task({"selection": selection})) == ["less_than_equal"]


@pytest.mark.parametrize(
    "contradiction",
    [
        pytest.param({"bounds.rho_min": 0.3, "bounds.rho_max": 0.2}, id="budgets"),
        pytest.param({"bounds.rho_max": 1e-7}, id="the default of the least budget"),
        pytest.param(
            {"game.policy": "fixed", "game.fixed_reward_micro": 6, "bounds.reward_max_micro": 5}, id="fixed reward"
        ),
        pytest.param(
            {
                "game.policy": "fixed",
                "game.reward_schedule_micro": [*[5] * 19, 6],
                "bounds.reward_max_micro": 5,
            },
            id="scheduled reward",
        ),
        pytest.param({"bounds.privacy_value_min": 2.0, "bounds.privacy_value_max": 1.0}, id="privacy values"),
        pytest.param({"bounds.reward_max_micro": 2, "bounds.reward_total_micro": 1}, id="rewards"),
        pytest.param({"rounds.min_clients": 3, "rounds.min_updates": 4}, id="minima"),
        pytest.param({"rounds.min_clients": 6, "bounds.clients_max": 5}, id="least clients"),
        pytest.param({"rounds.expected_clients": 6, "bounds.clients_max": 5}, id="expected clients"),
    ],
)
def test_bounds_that_exclude_each_other_are_inconsistent(read: Reader, contradiction: Json) -> None:
    assert codes_of(read, task(contradiction)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"bounds.rho_min": 0.2, "bounds.rho_max": 0.2}, id="budgets"),
        pytest.param({"bounds.rho_max": 1e-6}, id="the default of the least budget"),
        pytest.param(
            {"game.policy": "fixed", "game.fixed_reward_micro": 5, "bounds.reward_max_micro": 5}, id="fixed reward"
        ),
        pytest.param(
            {"game.policy": "fixed", "game.reward_schedule_micro": [5] * 20, "bounds.reward_max_micro": 5},
            id="scheduled reward",
        ),
        pytest.param({"bounds.privacy_value_min": 1.0, "bounds.privacy_value_max": 1.0}, id="privacy values"),
        pytest.param({"bounds.reward_max_micro": 1, "bounds.reward_total_micro": 1}, id="rewards"),
        pytest.param({"rounds.min_clients": 4, "rounds.min_updates": 4}, id="minima"),
        pytest.param({"rounds.min_clients": 5, "bounds.clients_max": 5}, id="least clients"),
        pytest.param({"rounds.expected_clients": 5, "bounds.clients_max": 5}, id="expected clients"),
    ],
)
def test_bounds_that_just_meet_are_admissible(read: Reader, limit: Json) -> None:
    assert read(task(limit)).dimension == 15


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"selection.rule": "all", "privacy.noise": False, "game.policy": "none"}, id="FedAvg"),
        pytest.param({"privacy.noise": False, "game.policy": "none"}, id="FedAvg-select"),
        pytest.param({"selection.rule": "all"}, id="FedAvg-DP"),
        pytest.param({}, id="QI-DPFL"),
        pytest.param({"selection.rule": "all", "game.policy": "max", "game.reward_range": RANGE}, id="Max"),
        pytest.param({"game.policy": "max", "game.reward_range": RANGE}, id="Max-select"),
        pytest.param({"selection.rule": "all", "game.policy": "random", "game.reward_range": RANGE}, id="Random"),
        pytest.param({"game.policy": "random", "game.reward_range": RANGE}, id="Random-select"),
    ],
)
def test_every_method_of_the_paper_is_a_combination_of_switches(read: Reader, method: Json) -> None:
    assert read(task(method)).dimension == 15
