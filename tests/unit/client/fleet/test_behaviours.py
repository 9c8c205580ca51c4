"""Members of a testbed: which ones misbehave, when and how."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from qidpfl_client.errors import Misconfigured
from qidpfl_client.fleet.behaviours import (
    UNDERSTATED,
    WIDENED,
    Behaviour,
    UnreliableDelivery,
    assign,
    behaving_data,
    behaving_owner,
)
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.owner import Owner
from qidpfl_client.participant.data_source import Learner
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import best_response, equilibrium
from qidpfl_shared.core.privacy.mechanisms import GradientOnceMechanism
from qidpfl_shared.protocol.presets import preset
from support.synthetic_clients import SyntheticData, SyntheticLearner

SPEC = preset("digits")
MODEL = np.zeros(SPEC.dimension, dtype=np.float32)
NOISE = UnsafeSeededNoise(3)


def learner(behaviour: Behaviour) -> Learner:
    return behaving_data(SyntheticData(), behaviour)(SPEC).learner(0)


def test_a_misreporter_multiplies_its_privacy_value() -> None:
    owner = Owner(privacy_value=1.0)
    assert behaving_owner(owner, Behaviour.MISREPORTER).privacy_value == UNDERSTATED
    assert behaving_owner(owner, Behaviour.MISREPORTER, misreport=1.2).privacy_value == pytest.approx(1.2)
    assert behaving_owner(owner, Behaviour.HONEST, misreport=1.2) == owner
    with pytest.raises(ImpossibleArgument):
        behaving_owner(owner, Behaviour.MISREPORTER, misreport=0.0)


def release(member: Learner, name: str = "a") -> npt.NDArray[np.float64]:
    return member.release(privacy=SPEC.privacy, model=MODEL, rho=0.1, noise=NOISE, name=name)


def test_the_seed_decides_which_members_misbehave() -> None:
    shares = {Behaviour.FREE_RIDER: 0.2, Behaviour.REPLAYER: 0.1}
    roles = assign(clients=30, shares=shares, seed=1)
    assert Counter(roles) == {Behaviour.HONEST: 21, Behaviour.FREE_RIDER: 6, Behaviour.REPLAYER: 3}
    assert roles == assign(clients=30, shares=shares, seed=1) != assign(clients=30, shares=shares, seed=2)
    assert set(assign(clients=3, shares={}, seed=0)) == {Behaviour.HONEST}


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(Misconfigured):
        assign(clients=10, shares={Behaviour.FREE_RIDER: 0.6, Behaviour.REPLAYER: 0.6}, seed=0)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ImpossibleArgument):
            assign(clients=10, shares={Behaviour.FREE_RIDER: share}, seed=0)


def test_an_unreliable_member_drops_out_at_the_given_rate_and_decides_the_same_again() -> None:
    members = [UnreliableDelivery(dropout=0.3, delay_up_to_s=2.0, seed=5, ordinal=ordinal) for ordinal in range(50)]
    answers = [member.delivers(number) for member in members for number in range(1, 41)]
    # 2000 trials: 0.3 give or take five standard deviations.
    assert abs(1 - np.mean(answers) - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5
    assert answers == [member.delivers(number) for member in members for number in range(1, 41)]
    delays = [member.delay_s(number) for member in members for number in range(1, 41)]
    assert 0 <= min(delays) < 0.1 and 1.9 < max(delays) <= 2.0
    assert all(
        UnreliableDelivery().delivers(number) and UnreliableDelivery().delay_s(number) == 0 for number in range(100)
    )
    assert not any(UnreliableDelivery(dropout=1.0).delivers(number) for number in range(100))


@pytest.mark.parametrize("fields", [{"dropout": float("nan")}, {"dropout": 1.5}, {"delay_up_to_s": float("inf")}])
def test_impossible_unreliability_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ImpossibleArgument):
        UnreliableDelivery(**fields)  # type: ignore[arg-type]


def test_a_misbehaving_member_has_the_profile_of_an_honest_one() -> None:
    honest = SyntheticLearner()
    for behaviour in Behaviour:
        member = learner(behaviour)
        assert (member.size, member.fingerprint) == (honest.size, honest.fingerprint)
        assert member.label_counts.tolist() == honest.label_counts.tolist()


def test_an_over_noiser_adds_more_noise_and_a_free_rider_sends_only_noise() -> None:
    std = GradientOnceMechanism(clip_norm=1.0).noise_std(rho=0.1, size=SyntheticLearner().size)
    draws = NOISE.standard_normal(SPEC.dimension, release="a")
    np.testing.assert_allclose(release(learner(Behaviour.OVER_NOISER)), WIDENED * std * draws)
    np.testing.assert_allclose(release(learner(Behaviour.FREE_RIDER)), std * draws)


def test_a_replayer_trains_once() -> None:
    member = learner(Behaviour.REPLAYER)
    first = release(member, "a")
    np.testing.assert_array_equal(release(member, "b"), first)
    assert not np.array_equal(release(learner(Behaviour.HONEST), "b"), first)


def test_a_misreporter_earns_more_than_with_the_truth() -> None:
    """At its true value and the same reward: the others bid less when one client commits to bid high."""
    values, reward, weight = [1.0] * 10, 30.0, SPEC.game.privacy_weight
    assert behaving_owner(Owner(privacy_value=1.0), Behaviour.MISREPORTER).privacy_value == UNDERSTATED
    assert behaving_owner(Owner(privacy_value=1.0), Behaviour.FREE_RIDER).privacy_value == 1.0

    def gain(reported: float) -> float:
        total = equilibrium(reward=reward, privacy_values=[reported, *values[1:]], privacy_weight=weight).total
        rho = best_response(reward=reward, total=total, privacy_value=reported, privacy_weight=weight)
        return rho / total * reward - weight * values[0] * rho

    assert gain(UNDERSTATED) > gain(1.0) > 0
