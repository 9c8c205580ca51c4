"""A node that sells privacy: its profile, its answers and its account, with torch and without Flower."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qidpfl_client.errors import OwnerLimit, UntrustedCoordinator
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.owner import Owner
from qidpfl_flower.flower_task import flower_task
from qidpfl_flower.node_messages import NodeState
from qidpfl_flower.paid_node import PrivacySeller
from qidpfl_flower.paid_rounds import PaidTask
from qidpfl_flower.records import records_of_labels
from qidpfl_shared.core.aggregation import ServerState
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec, Vector32

LAYOUT = TensorLayout(tensors=(TensorSpec(name="weight", shape=(20, 10)),))
MODEL = np.linspace(-1, 1, 200).astype(np.float32)
SPEC = flower_task(
    LAYOUT,
    labels=3,
    clients=3,
    rounds=5,
    overrides={
        "bounds": {"rho_max": 1.0, "rho_min": 1e-6},
        "privacy": {"lifetime_rho": 15.0, "histogram_rho": 0.1},
        "game": {"policy": "fixed", "fixed_reward_micro": 20_000_000, "privacy_weight": 100.0},
    },
)
RECORDS = records_of_labels([0, 1, 2] * 30, wanted=3)
PUBLIC = Owner(rho_cap=2.0, lifetime_rho=15.0, histogram_rho=0.1)


@dataclass
class Steps:
    """A program that adds the same to every parameter, and counts its trainings."""

    trainings: int = 0

    def train(self, model: Vector32, *, round_number: int, rho: float | None) -> npt.NDArray[Any]:
        self.trainings += 1
        return model + np.float32(0.001)


def seller(owner: Owner = PUBLIC) -> PrivacySeller:
    return PrivacySeller(owner=owner, noise=UnsafeSeededNoise(seed=3))


def offers(states: dict[int, NodeState], rounds: int = 1) -> list[RoundOffer]:
    """The offers of the first rounds to node 1."""
    task = PaidTask(SPEC, ServerState.start(MODEL))
    task.select({node: state.profile for node, state in states.items()})
    return [task.open_round(number)[1] for number in range(1, rounds + 1)]


@pytest.fixture
def state() -> NodeState:
    return seller().profile(SPEC, Steps(), RECORDS)


def three(state: NodeState) -> dict[int, NodeState]:
    return dict.fromkeys((1, 2, 3), state)


def test_a_profile_is_noised_and_charged(state: NodeState) -> None:
    assert state.profile.size == 90 and state.profile.histogram_rho == 0.1
    assert state.profile.label_counts != (30, 30, 30)
    assert state.account(lifetime_rho=15.0, accept_unproven=False).spent_rho == pytest.approx(0.1)
    assert NodeState.model_validate_json(state.model_dump_json()) == state


def test_an_answer_is_the_best_budget_with_its_noise_and_is_charged(state: NodeState) -> None:
    (offer,) = offers(three(state))
    answer, after = seller().answer(state, offer, MODEL, Steps(), RECORDS)
    best = best_response(
        reward=from_micro(offer.reward_micro), total=offer.total, privacy_value=1.0, privacy_weight=100.0
    )
    assert answer.rho == pytest.approx(best) and answer.update is not None
    std = SPEC.privacy.mechanism.build().noise_std(rho=answer.rho, size=90)
    assert np.std(answer.update) == pytest.approx(std, rel=0.2)
    assert after.account(lifetime_rho=15.0, accept_unproven=False).spent_rho == pytest.approx(0.1 + best)


def test_a_round_that_was_answered_is_not_answered_with_another_update(state: NodeState) -> None:
    (offer,) = offers(three(state))
    program = Steps()
    _, after = seller().answer(state, offer, MODEL, program, RECORDS)
    again, kept = seller().answer(after, offer, MODEL, program, RECORDS)
    assert (again.update, again.declined, program.trainings) == (None, "owner_limit", 1)
    assert kept.releases == after.releases


def test_a_limit_of_the_owner_ends_the_sales(state: NodeState) -> None:
    first, second = offers(three(state), rounds=2)
    answer, after = seller().answer(state, first, MODEL, Steps(), RECORDS)
    limited = seller(replace(PUBLIC, lifetime_rho=0.1 + answer.rho + 1e-9))
    declined, _ = limited.answer(after, second, MODEL, Steps(), RECORDS)
    assert declined.update is None and declined.declined == "owner_limit"


def test_a_price_of_the_owner_counts(state: NodeState) -> None:
    (offer,) = offers(three(state))
    answer, _ = seller(replace(PUBLIC, min_utility=1e6)).answer(state, offer, MODEL, Steps(), RECORDS)
    assert (answer.declined, answer.update) == ("not_worth_it", None)


def test_contradictions_of_the_server_are_refused(state: NodeState) -> None:
    first, second = offers(three(state), rounds=2)
    with pytest.raises(UntrustedCoordinator, match="the model is not the one"):
        seller().answer(state, first, MODEL + 1, Steps(), RECORDS)
    _, after = seller().answer(state, second, MODEL, Steps(), RECORDS)
    with pytest.raises(UntrustedCoordinator, match="announced again after round 2"):
        seller().answer(after, first, MODEL, Steps(), RECORDS)
    with pytest.raises(UntrustedCoordinator, match="clip norm"):
        seller().answer(state, first.model_copy(update={"clip_norm": 9.0}), MODEL, Steps(), RECORDS)


def test_the_default_limits_of_an_owner_hold() -> None:
    with pytest.raises(OwnerLimit, match="privacy value"):
        seller(Owner(privacy_value=1000.0)).profile(SPEC, Steps(), RECORDS)
    cautious = seller(Owner()).profile(SPEC, Steps(), RECORDS)
    assert (cautious.profile.histogram_rho, cautious.profile.rho_cap) == (0.02, 0.05)


def test_unproven_noise_needs_the_consent_of_the_owner() -> None:
    mechanism = {"name": "paper_literal", "clip_norm": 1.0, "learning_rate": 1.0, "batch_size": 1}
    spec = flower_task(LAYOUT, labels=3, clients=3, rounds=2, overrides={"privacy": {"mechanism": mechanism}})
    with pytest.raises(OwnerLimit, match="heuristic noise"):
        seller().profile(spec, Steps(), RECORDS)
