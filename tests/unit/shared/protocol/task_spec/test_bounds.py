"""The bounds of every number of a task, alone and all together."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.core.planning import RewardBound, RoundPlan, plan_round
from qidpfl_shared.core.reward import Weighting
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.fields import MAX_DIMENSION
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json, codes_of
from support.protocol.task_texts import MECHANISMS, PARAMETERS, RANGE, TASK, Reader, codes_by_field, task

# --- bounds of numbers -----------------------------------------------------------------------------------------------

BOUNDED: dict[str, tuple[float, float]] = {
    "game.discount": (1e-6, 1.0),
    "game.privacy_weight": (1e-9, 1e9),
    "game.smoothness": (1e-9, 1e9),
    "game.convexity": (1e-9, 1e9),
    "privacy.histogram_rho": (1e-12, 1e9),
    "privacy.lifetime_rho": (1e-12, 1e9),
    "aggregation.learning_rate": (1e-9, 1e6),
    "bounds.rho_max": (1e-12, 1e9),
    "bounds.rho_min": (1e-12, 1e9),
    "bounds.privacy_value_min": (1e-9, 1e9),
    "bounds.privacy_value_max": (1e-9, 1e9),
}
# What lets each of these numbers take either bound without contradicting another.
WIDEST = {
    "game.horizon": 1,
    "bounds.rho_min": 1e-12,
    "bounds.rho_max": 1e9,
    "bounds.privacy_value_min": 1e-9,
    "bounds.privacy_value_max": 1e9,
}
MONEY = [
    "game.reward_range.minimum_micro",
    "game.reward_range.maximum_micro",
    "game.fixed_reward_micro",
    "bounds.reward_max_micro",
    "bounds.reward_total_micro",
]

every_bounded_number = pytest.mark.parametrize(("field", "bounds"), BOUNDED.items(), ids=BOUNDED)


def with_parameter(name: str, parameter: str, value: float) -> Json:
    return task({"privacy.mechanism": {"name": name, **MECHANISMS[name], parameter: value}})


@every_bounded_number
def test_a_number_reaches_to_its_bounds(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    assert [codes_of(read, task(WIDEST | {field: bound})) for bound in bounds] == [[], []]


@every_bounded_number
def test_a_number_just_below_its_bound_is_refused(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    below = math.nextafter(bounds[0], 0)
    assert codes_of(read, task(WIDEST | {field: below})) == ["greater_than_equal"]


@every_bounded_number
def test_a_number_just_above_its_bound_is_refused(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    above = math.nextafter(bounds[1], math.inf)
    assert codes_of(read, task(WIDEST | {field: above})) == ["less_than_equal"]


@pytest.mark.parametrize("value", [0, 5e-324, 1e-300, 1e-60], ids=repr)
def test_no_number_is_so_small_that_its_square_is_lost(read: Reader, value: float) -> None:
    assert codes_by_field(read, list(BOUNDED), value) == {key: ["greater_than_equal"] for key in BOUNDED}


def test_the_gradients_may_be_bounded_by_zero(read: Reader) -> None:
    assert read(task({"game.gradient_bound": 0.0})).cost_model().signal_cost == 0


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_is_never_too_small(read: Reader, name: str, parameter: str) -> None:
    tiny = [0, 5e-324, math.nextafter(1e-9, 0)]
    assert [codes_of(read, with_parameter(name, parameter, value)) for value in tiny] == [["greater_than_equal"]] * 3


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_is_never_too_large(read: Reader, name: str, parameter: str) -> None:
    huge = [math.nextafter(1e9, math.inf), 1e300]
    assert [codes_of(read, with_parameter(name, parameter, value)) for value in huge] == [["less_than_equal"]] * 2


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_may_be_as_small_as_its_bound(read: Reader, name: str, parameter: str) -> None:
    assert read(with_parameter(name, parameter, 1e-9)).round_rules().mechanism.noise_scale(size=10**7) > 0


@pytest.mark.parametrize(("name", "parameter"), [pair for pair in PARAMETERS if pair[0] != "bolt_on"])
def test_a_parameter_of_a_mechanism_may_be_as_large_as_its_bound(read: Reader, name: str, parameter: str) -> None:
    assert read(with_parameter(name, parameter, 1e9)).round_rules().mechanism.noise_scale(size=1) < math.inf


@pytest.mark.parametrize("field", MONEY)
def test_money_ends_at_a_billion_units(read: Reader, field: str) -> None:
    changes = {"game.policy": "fixed", "game.fixed_reward_micro": 5, "game.reward_range": dict(RANGE)}
    assert codes_of(read, task(changes | {field: MAX_MICRO + 1})) == ["less_than_equal"]


@pytest.mark.parametrize("field", ["bounds.reward_max_micro", "bounds.reward_total_micro"])
def test_a_task_may_pay_a_billion_units(read: Reader, field: str) -> None:
    spec = read(task({"bounds.reward_total_micro": MAX_MICRO, field: MAX_MICRO}))
    assert spec.bounds.reward_total_micro == MAX_MICRO


@pytest.mark.parametrize(
    "game",
    [
        {"policy": "fixed", "fixed_reward_micro": MAX_MICRO},
        {"policy": "max", "reward_range": {"minimum_micro": 0, "maximum_micro": MAX_MICRO}},
        {"policy": "random", "reward_range": {"minimum_micro": MAX_MICRO, "maximum_micro": MAX_MICRO}},
    ],
    ids=lambda game: str(game["policy"]),
)
def test_the_largest_reward_is_planned_to_its_last_unit(read: Reader, game: Json) -> None:
    money = {"bounds.reward_max_micro": MAX_MICRO, "bounds.reward_total_micro": MAX_MICRO}
    plan = plan_of(read(task({"game": TASK["game"] | game, **money})), round_number=1)
    assert (plan.reward_micro, plan.bound) == (MAX_MICRO, RewardBound.NONE)


# --- corners of all bounds together ----------------------------------------------------------------------------------

# A discount of 1e-6 leaves something of the fifteenth round only; of a million rounds this one does.
SCHEDULES = [(1, 1e-6), (1, 1.0), (15, 1e-6), (1_000_000, 0.99980002), (1_000_000, 1.0)]
ENDS = st.sampled_from([1e-9, 1e9])
RHO_ENDS = st.sampled_from([1e-12, 1e9])
MOST_RECORDS = 2**53 - 1


def corner_mechanisms() -> st.SearchStrategy[Json]:
    trained = ("update_clip", "paper_literal", "noisy_epochs")
    clipped = {"clip_norm": ENDS, "learning_rate": ENDS, "epochs": st.sampled_from([1, 10_000])}
    batch = {"batch_size": st.sampled_from([1, 10_000_000])}
    # The proof of bolt_on allows learning rates up to 4/(feature_norm² + 1).
    steps = st.sampled_from([(1e-9, 1e-9), (1e-9, 4.0), (1e4, 1e-9), (6e4, 1e-9)])
    return st.one_of(
        st.fixed_dictionaries({"name": st.just("gradient_once"), "clip_norm": ENDS}),
        st.fixed_dictionaries({"name": st.sampled_from(trained), **clipped, **batch}),
        st.builds(
            lambda step, rest: {"name": "bolt_on", "feature_norm": step[0], "learning_rate": step[1], **rest},
            steps,
            st.fixed_dictionaries({"epochs": clipped["epochs"], **batch}),
        ),
    )


@st.composite
def corner_tasks(draw: st.DrawFn) -> Json:
    horizon, discount = draw(st.sampled_from(SCHEDULES))
    reward_micro = draw(st.sampled_from([1, MAX_MICRO]))
    game = {
        "horizon": horizon,
        "discount": discount,
        "privacy_weight": draw(ENDS),
        "accuracy_weight": draw(st.sampled_from([0.0, 0.5, math.nextafter(1.0, 0)])),
        "smoothness": draw(ENDS),
        "convexity": draw(ENDS),
        "gradient_bound": draw(st.sampled_from([0.0, 1e9])),
        "min_share": draw(st.sampled_from([0.0, 1.0])),
    }
    bounds = {
        "rho_max": draw(RHO_ENDS),
        "rho_min": 1e-12,
        "privacy_value_min": 1e-9,
        "privacy_value_max": 1e9,
        "size_max": MOST_RECORDS,
        "reward_max_micro": reward_micro,
        "reward_total_micro": reward_micro,
    }
    return task(
        {
            "layout.tensors": [{"name": "weight", "shape": [draw(st.sampled_from([1, MAX_DIMENSION]))]}],
            "game": game,
            "privacy.mechanism": draw(corner_mechanisms()),
            "aggregation.weighting": draw(st.sampled_from([weighting.value for weighting in Weighting])),
            "bounds": bounds,
        }
    )


def corner_participants(most_records: int) -> st.SearchStrategy[list[Participant]]:
    participant = st.builds(
        Participant,
        privacy_value=ENDS,
        size=st.sampled_from([1, most_records]),
        rho_cap=RHO_ENDS | st.just(math.inf),
        remaining_rho=RHO_ENDS | st.sampled_from([0.0, math.inf]),
    )
    return st.lists(participant, min_size=2, max_size=5)


def plan_of(spec: TaskSpec, round_number: int, participants: list[Participant] | None = None) -> RoundPlan:
    return plan_round(
        rules=spec.round_rules(),
        round_number=round_number,
        participants=[Participant(privacy_value=1.0, size=100)] * 3 if participants is None else participants,
        reward_left_micro=spec.bounds.reward_total_micro,
    )


# Twice the examples of the profile: there are many corners.
@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples)
@given(body=corner_tasks(), data=st.data())
def test_a_round_can_be_planned_in_every_corner_of_the_bounds(body: Json, data: st.DataObject) -> None:
    spec = TaskSpec.model_validate(body)
    # noisy_epochs lists its batches: with batches of one record, as many as there are records.
    most_records = 1000 if spec.privacy.mechanism.name == "noisy_epochs" else MOST_RECORDS
    participants = data.draw(corner_participants(most_records))
    round_number = data.draw(st.sampled_from([1, spec.game.horizon]))
    plan = plan_of(spec, round_number, participants)
    assert 0 <= plan.reward_micro <= spec.bounds.reward_max_micro
    assert all(0 <= budget <= spec.bounds.rho_max for budget in plan.budgets) and math.isfinite(plan.total)


@given(body=corner_tasks())
def test_the_cost_model_has_finite_constants_in_every_corner_of_the_bounds(body: Json) -> None:
    model = TaskSpec.model_validate(body).cost_model()
    assert 0 <= model.noise_factor < math.inf and 0 <= model.signal_cost < math.inf
    assert 0 < model.price(model.horizon) <= 1


@given(body=corner_tasks())
def test_a_task_in_a_corner_of_the_bounds_survives_json(body: Json) -> None:
    spec = TaskSpec.model_validate(body)
    assert TaskSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest
