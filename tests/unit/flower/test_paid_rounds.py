"""The rounds of the strategy: selection, offers, the noise audit, exact payments, the next model."""

from typing import Any

import numpy as np
import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_flower.flower_task import check_supported, flower_task
from qidpfl_flower.node_messages import NodeAnswer
from qidpfl_flower.paid_rounds import PaidRound, PaidTask, totals_line
from qidpfl_shared.core.aggregation import ServerState
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.protocol.messages import Profile, RoundOffer
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec, digest_of, encode

LAYOUT = TensorLayout(tensors=(TensorSpec(name="weight", shape=(40, 10)), TensorSpec(name="bias", shape=(40,))))
INITIAL = np.linspace(-1, 1, LAYOUT.dimension).astype(np.float32)
# A cap above all budgets of the game.
ROOMY: dict[str, Any] = {
    "bounds": {"rho_max": 1.0, "rho_min": 1e-6},
    "privacy": {"lifetime_rho": 15.0},
    "game": {"policy": "fixed", "fixed_reward_micro": 20_000_003, "privacy_weight": 100.0},
}
VALUES = {5: 1.0, 6: 1.05, 7: 0.95, 8: 1.1}


def profile(value: float = 1.0, counts: tuple[int, ...] = (30, 30, 30), **fields: Any) -> Profile:
    return Profile(label_counts=counts, size=sum(counts), privacy_value=value, histogram_rho=0.1, **fields)


def opened(profiles: dict[int, Profile] | None = None, **overrides: Any) -> PaidTask:
    spec = flower_task(LAYOUT, labels=3, clients=4, rounds=3, overrides=ROOMY | overrides)
    task = PaidTask(spec, ServerState.start(INITIAL))
    task.select(profiles or {node: profile(value) for node, value in VALUES.items()})
    return task


def honest(task: PaidTask, node: int, offer: RoundOffer, signal: float = 0.01) -> NodeAnswer:
    """The best budget, and a small update with the noise of it."""
    rho = best_response(
        reward=from_micro(offer.reward_micro),
        total=offer.total,
        privacy_value=VALUES[node],
        privacy_weight=task.spec.game.privacy_weight,
        cap=offer.rho_max,
    )
    std = task.spec.privacy.mechanism.build().noise_std(rho=rho, size=90)
    drawn = np.random.default_rng([node, offer.round_number]).normal(signal, std, task.spec.dimension)
    return NodeAnswer(rho=rho, update=drawn.astype(np.float32))


def answers(task: PaidTask, number: int = 1) -> dict[int, NodeAnswer]:
    return {node: honest(task, node, offer) for node, offer in task.open_round(number).items()}


def test_nodes_far_from_the_reference_are_refused() -> None:
    profiles = {node: profile() for node in (5, 6, 7)} | {9: profile(counts=(90, 0, 0))}
    task = opened(profiles)
    assert [node.selected for node in task.nodes.values()] == [True, True, True, False]
    assert task.nodes[9].label_distance == pytest.approx(4 / 3)
    assert set(task.open_round(1)) == {5, 6, 7}


@pytest.mark.parametrize(
    "wrong",
    [
        profile(50.0),
        profile(counts=(45, 45)),
        Profile(size=90, privacy_value=1.0),
    ],
    ids=["privacy value", "labels", "no histogram"],
)
def test_a_profile_outside_the_bounds_counts_as_none(wrong: Profile) -> None:
    task = opened({5: profile(), 6: profile(), 7: profile(), 9: wrong})
    assert set(task.nodes) == {5, 6, 7}
    few = opened({5: profile(), 6: profile(), 9: wrong})
    assert few.ended == "2 nodes sent a profile, 3 are needed" and few.open_round(1) == {}


def test_too_few_nodes_after_the_selection_end_the_task() -> None:
    task = opened({5: profile(), 6: profile(), 7: profile(counts=(90, 0, 0))})
    assert task.ended == "too few nodes pass the selection" and task.open_round(1) == {}


def test_an_offer_is_the_equilibrium_and_names_the_model() -> None:
    task = opened()
    offers = task.open_round(1)
    budgets = {node: honest(task, node, offer).rho for node, offer in offers.items()}
    assert sum(budgets.values()) == pytest.approx(next(iter(offers.values())).total)
    assert sorted(budgets, key=lambda node: -budgets[node]) == [7, 5, 6, 8]
    assert {offer.model_digest for offer in offers.values()} == {digest_of(encode(INITIAL))}


def test_a_settled_round_pays_exactly_and_averages() -> None:
    task = opened()
    given = answers(task)
    settled = task.settle(given)
    assert not settled.void and settled.accepted == 4
    assert settled.reward_micro == settled.paid_micro + settled.kept_micro == 20_000_003
    shares = {node: answer.rho / sum(one.rho for one in given.values()) for node, answer in given.items()}
    for node, share in shares.items():
        assert abs(settled.nodes[node].payment_micro - share * 20_000_003) <= 1
        assert task.nodes[node].paid_micro == settled.nodes[node].payment_micro
    mean = np.mean([answer.update for answer in given.values() if answer.update is not None], axis=0, dtype=np.float64)
    np.testing.assert_allclose(task.state.parameters, INITIAL - mean, atol=1e-5)


def cheating(task: PaidTask, kind: str) -> dict[int, NodeAnswer]:
    """The answers to round 1, where node 8 cheats."""
    given = answers(task)
    own = given[8]
    assert own.update is not None
    match kind:
        case "no noise":
            given[8] = NodeAnswer(rho=own.rho, update=np.full_like(own.update, 1e-3))
        case "loud":
            given[8] = NodeAnswer(rho=own.rho, update=own.update * 2)
        case "huge":
            given[8] = NodeAnswer(rho=own.rho, update=own.update * 1000)
        case "nan":
            given[8] = NodeAnswer(rho=own.rho, update=own.update * np.nan)
        case "short":
            given[8] = NodeAnswer(rho=own.rho, update=own.update[1:])
        case "copy":
            given[8] = NodeAnswer(rho=own.rho, update=given[5].update)
    return given


@pytest.mark.parametrize(
    ("kind", "refusal", "verdict"),
    [
        ("no noise", "noise audit: too_little_noise", NoiseVerdict.TOO_LITTLE_NOISE),
        ("loud", "noise audit: too_much_noise", NoiseVerdict.TOO_MUCH_NOISE),
        ("huge", "its norm is out of bounds", None),
        ("nan", "not 440 finite numbers", None),
        ("short", "not 440 finite numbers", None),
        ("copy", "a copy of another update", None),
    ],
)
def test_a_refused_update_is_not_paid_and_its_share_is_kept(
    kind: str, refusal: str, verdict: NoiseVerdict | None
) -> None:
    task = opened()
    given = cheating(task, kind)
    settled = task.settle(given)
    cheat = settled.nodes[8]
    assert (cheat.refusal, cheat.verdict, cheat.accepted, cheat.payment_micro) == (refusal, verdict, False, 0)
    assert settled.paid_micro + settled.kept_micro == settled.reward_micro and settled.kept_micro > 0
    assert settled.accepted == 3
    # Its update was sent all the same: the account of the node counts it.
    assert task.nodes[8].account.spent_rho == pytest.approx(0.1 + given[8].rho)


def test_an_audit_that_only_flags_pays() -> None:
    task = opened(privacy={"lifetime_rho": 15.0, "audit": "flag"})
    settled = task.settle(cheating(task, "no noise"))
    assert settled.nodes[8].verdict is NoiseVerdict.TOO_LITTLE_NOISE and settled.nodes[8].payment_micro > 0


@pytest.mark.parametrize("rho", [0.0, -1.0, 1e-9, 1.1, np.nan, np.inf])
def test_a_budget_outside_the_bounds_is_none(rho: float) -> None:
    task = opened()
    given = answers(task)
    given[8] = NodeAnswer(rho=rho, update=given[8].update)
    settled = task.settle(given)
    assert settled.nodes[8].rho == 0 and "outside the bounds" in str(settled.nodes[8].refusal)
    assert settled.kept_micro == 0 and settled.paid_micro == settled.reward_micro


def test_nodes_that_do_not_answer_or_decline_are_not_in_the_sum() -> None:
    task = opened()
    given = answers(task)
    del given[7]
    given[8] = NodeAnswer(declined="not_worth_it")
    settled = task.settle(given)
    assert not settled.void and settled.paid_micro == settled.reward_micro and set(settled.nodes) == {5, 6, 8}
    assert (settled.nodes[8].refusal, settled.nodes[8].payment_micro) == ("not_worth_it", 0)


def test_a_round_with_too_few_updates_is_void() -> None:
    task = opened()
    settled = task.settle({5: answers(task)[5]})
    assert settled.void and settled.paid_micro == 0 and settled.kept_micro == settled.reward_micro
    assert np.array_equal(task.state.parameters, INITIAL)
    # What was sent stays charged.
    assert task.nodes[5].account.spent_rho > 0.1 and task.nodes[7].account.spent_rho == 0.1


def test_a_stranger_is_not_paid() -> None:
    task = opened()
    given = answers(task)
    settled = task.settle(given | {99: given[5]})
    assert set(settled.nodes) == {5, 6, 7, 8} and settled.accepted == 4


def test_the_rounds_end_with_the_horizon_and_with_the_money() -> None:
    task = opened()
    for number in (1, 2, 3):
        task.settle(answers(task, number))
    assert task.open_round(4) == {} and task.ended == "the task has 3 rounds"
    poor = opened(bounds=ROOMY["bounds"] | {"reward_total_micro": 20_000_004, "reward_max_micro": 20_000_004})
    poor.settle(answers(poor))
    assert poor.open_round(2) == {} and poor.ended == "budget_exhausted"
    assert totals_line(task.rounds) == "rewards 60000009 micro = paid 60000009 + kept 0, in 3 rounds"


def test_a_lifetime_budget_ends_the_participation_of_a_node() -> None:
    profiles = {node: profile(value) for node, value in VALUES.items()}
    task = opened(profiles | {5: profile(lifetime_rho=0.1)})
    assert set(task.open_round(1)) == {6, 7, 8}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"defence": {}}, "defence is part of the coordinator"),
        ({"aggregation": {"rule": "trimmed_mean", "trim": 0.1}}, "aggregation.rule"),
        ({"game": {"policy": "none"}, "privacy": {"noise": False}}, "use FedAvg of Flower"),
        ({"game": {"policy": "own", "own_rules": "mine"}}, "rules of your own"),
        ({"privacy": {"mechanism": {"name": "gradient_once", "clip_norm": 1.0}}}, "use update_clip"),
    ],
)
def test_a_task_that_needs_the_coordinator_is_refused(overrides: dict[str, Any], said: str) -> None:
    spec = flower_task(LAYOUT, labels=3, clients=4, rounds=3, overrides=overrides)
    with pytest.raises(Misconfigured, match=said):
        check_supported(spec)


def test_payments_of_a_void_round_stay_with_the_operator() -> None:
    void = PaidRound(round_number=1, void=True, reward_micro=7, kept_micro=7, nodes={})
    assert totals_line([void]) == "rewards 7 micro = paid 0 + kept 7, in 1 rounds"
