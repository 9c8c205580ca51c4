"""The profile: with noise or declared exact, and within the limits of owner and task."""

import math
from typing import Any

import pytest

from qidpfl_client.errors import OwnerLimit
from qidpfl_client.journal.journal import histogram_entry, round_entry
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.owner import Owner
from qidpfl_client.participant.profile import check_presentable, make_profile
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.protocol.messages import Profile, SpendState
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.releases import release_of, round_of
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.synthetic_clients import SyntheticLearner

SPEC = preset("digits")
UNSUGGESTED = preset("digits", {"privacy": {"histogram_rho": None}})
NOISE = UnsafeSeededNoise(1)
LEARNER = SyntheticLearner(labels=tuple(range(5, 15)))


def profile(owner: Owner, spec: TaskSpec = SPEC, *, learner: SyntheticLearner = LEARNER) -> Profile:
    account = PrivacyAccount(lifetime_rho=owner.lifetime_limit(spec.privacy.lifetime_rho))
    return make_profile(spec=spec, owner=owner, learner=learner, noise=NOISE, account=account)


def test_a_histogram_has_noise_for_its_budget_and_keeps_the_size() -> None:
    made = profile(Owner(privacy_value=1.5, rho_cap=0.2, lifetime_rho=2.0))
    draws = NOISE.standard_normal(10, release="histogram")
    assert made.label_counts == private_histogram(counts=LEARNER.labels, rho=0.1, standard_noise=draws)
    assert made.label_counts != LEARNER.labels and sum(made.label_counts) == made.size == LEARNER.size
    assert (made.histogram_rho, made.privacy_value, made.rho_cap, made.lifetime_rho) == (0.1, 1.5, 0.2, 2.0)


@pytest.mark.parametrize(
    ("own", "spec", "rho"), [(0.3, SPEC, 0.3), (None, SPEC, 0.1), (None, UNSUGGESTED, 10 * (18 / 95) ** 2)]
)
def test_the_budget_comes_from_the_owner_else_the_task_else_the_size(
    own: float | None, spec: TaskSpec, rho: float
) -> None:
    assert profile(Owner(histogram_rho=own), spec).histogram_rho == pytest.approx(rho)


def test_an_exact_histogram_has_the_true_counts_and_is_labelled_unprotected() -> None:
    made = profile(Owner(exact_histogram=True, accept_unproven=True))
    assert made.label_counts == LEARNER.labels and made.histogram_rho is None
    entry = histogram_entry("t", made)
    assert (entry.mechanism, entry.rho, entry.proven_rho) == ("exact histogram, unprotected", 0.0, math.inf)


def test_a_noised_histogram_is_charged_at_its_budget() -> None:
    entry = histogram_entry("t", profile(Owner()))
    assert (entry.rho, entry.proven_rho, entry.state) == (0.1, 0.1, SpendState.SPENT)
    assert "unprotected" not in entry.mechanism


@pytest.mark.parametrize("learner", [SyntheticLearner(labels=(50, 50)), SyntheticLearner(labels=(2_000_000,) * 10)])
def test_data_that_do_not_fit_the_task_are_refused(learner: SyntheticLearner) -> None:
    with pytest.raises(OwnerLimit, match="the data have"):
        profile(Owner(), learner=learner)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exact_histogram": True}, "unprotected release"),
        ({"privacy_value": 1000.0}, "privacy value 1000"),
        ({"lifetime_rho": 0.05}, "rho 0.05 is left"),
        ({"histogram_rho": 4.0}, "the histogram needs 4"),
    ],
)
def test_impossible_limits_are_found_before_enrolling(options: dict[str, Any], said: str) -> None:
    owner = Owner(**options)
    account = PrivacyAccount(lifetime_rho=owner.lifetime_limit(SPEC.privacy.lifetime_rho))
    with pytest.raises(OwnerLimit, match=said):
        check_presentable(spec=SPEC, owner=owner, account=account)


def test_each_round_has_its_own_release_name() -> None:
    assert [round_of(release_of(number)) for number in (1, 20, 999_999)] == [1, 20, 999_999]
    for name in ("histogram", "round/", "round/0", "round/x", "round/1/abc", "round/1\n", "round/12345678"):
        assert round_of(name) is None


def test_an_entry_shows_the_guarantee_of_its_mechanism() -> None:
    def entry(**overrides: Any) -> tuple[str, float]:
        spec = preset("digits", overrides)
        made = round_entry(task_id="t", spec=spec, round_number=1, rho=0.1, size=100)
        assert made.rho == 0.1 and made.state is SpendState.RESERVED
        return made.mechanism, made.proven_rho

    assert entry() == ("gradient_once", 0.1)
    assert entry(game={"policy": "none"}, privacy={"noise": False}) == (
        "gradient_once, noise off, unprotected",
        math.inf,
    )
    literal = {"name": "paper_literal", "clip_norm": 1.0, "learning_rate": 0.1, "batch_size": 16}
    label, proven = entry(privacy={"mechanism": literal}, aggregation={"learning_rate": 1.0, "momentum": 0.0})
    assert label == "paper_literal, heuristic: no privacy guarantee" and proven > 0.1
