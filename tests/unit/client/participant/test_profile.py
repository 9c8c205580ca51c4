"""The profile: with noise or declared exact, and within the limits of owner and task."""

import math
from typing import Any

import pytest

from qidpfl_client.errors import OwnerLimit
from qidpfl_client.journal.journal import histogram_entry, round_entry
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.owner import HISTOGRAM_RHO, Owner
from qidpfl_client.participant.profile import check_presentable, check_records, histogram_in_words, make_profile
from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.releases import release_of, round_of
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.synthetic_clients import SyntheticLearner

SPEC = preset("digits")
UNSUGGESTED = preset("digits", {"privacy": {"histogram_rho": None}})
TAKES_ALL = preset("digits", {"selection": {"rule": "all"}})
NOISE = UnsafeSeededNoise(1)
LEARNER = SyntheticLearner(labels=tuple(range(5, 15)))


def profile(owner: Owner, spec: TaskSpec = SPEC, *, learner: SyntheticLearner = LEARNER) -> Profile:
    return make_profile(spec=spec, owner=owner, learner=learner, noise=NOISE)


def test_a_histogram_has_noise_for_its_budget_and_keeps_the_size() -> None:
    made = profile(Owner(privacy_value=1.5, rho_cap=0.2, lifetime_rho=2.0, histogram_rho=0.5))
    draws = NOISE.standard_normal(10, release="histogram")
    assert made.label_counts == private_histogram(counts=LEARNER.labels, rho=0.1, standard_noise=draws)
    assert made.label_counts != LEARNER.labels and sum(made.label_counts or ()) == made.size == LEARNER.size
    assert (made.histogram_rho, made.privacy_value, made.rho_cap, made.lifetime_rho) == (0.1, 1.5, 0.2, None)


@pytest.mark.parametrize(
    ("own", "spec", "rho"),
    [
        (0.02, SPEC, 0.02),
        (0.3, SPEC, 0.1),
        (0.3, preset("digits", {"privacy": {"histogram_rho": 100.0}}), 0.3),
        (0.02, UNSUGGESTED, 0.02),
        (9.0, UNSUGGESTED, 10 * (18 / 95) ** 2),
    ],
)
def test_the_budget_is_the_tasks_or_follows_from_the_size_and_never_exceeds_the_owners(
    own: float, spec: TaskSpec, rho: float
) -> None:
    assert profile(Owner(histogram_rho=own), spec).histogram_rho == pytest.approx(rho)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_the_histogram_of_a_small_client_stays_within_the_defaults(size: int) -> None:
    small = SyntheticLearner(labels=(size,) + (0,) * 9)
    assert profile(Owner(), UNSUGGESTED, learner=small).histogram_rho == HISTOGRAM_RHO


@pytest.mark.parametrize(("cap", "sent"), [(50.0, 0.5), (0.05, 0.05)])
def test_the_profile_has_the_lower_cap_of_owner_and_task(cap: float, sent: float) -> None:
    assert profile(Owner(rho_cap=cap)).rho_cap == sent


def test_a_profile_without_a_histogram_costs_nothing() -> None:
    made = profile(Owner(no_histogram=True), TAKES_ALL)
    assert (made.label_counts, made.histogram_rho, made.size) == (None, None, LEARNER.size)
    assert histogram_entry("t", made) is None


@pytest.mark.parametrize(
    ("owner", "labels", "said"),
    [
        (Owner(), (100,) * 10, "costs rho 0.02; with 1000 records it shows the label distance (0 to 2) with an error"),
        (Owner(), (100,) * 10, "of about 0.021"),
        (Owner(), (1,) * 10, "of about 2, which is too much to be selected by it"),
        (Owner(exact_histogram=True), (1,) * 10, "exact, an unprotected release"),
        (Owner(no_histogram=True), (1,) * 10, "none is sent"),
    ],
)
def test_the_owner_is_told_what_the_histogram_costs_and_how_exact_it_is(
    owner: Owner, labels: tuple[int, ...], said: str
) -> None:
    made = profile(owner, TAKES_ALL, learner=SyntheticLearner(labels=labels))
    assert said in histogram_in_words(made, labels=10)


def test_an_exact_histogram_has_the_true_counts_and_is_labelled_unprotected() -> None:
    made = profile(Owner(exact_histogram=True, accept_unproven=True))
    assert made.label_counts == LEARNER.labels and made.histogram_rho is None
    entry = histogram_entry("t", made)
    assert entry is not None
    assert (entry.mechanism, entry.rho, entry.proven_rho) == ("exact histogram, unprotected", 0.0, math.inf)


def test_a_noised_histogram_is_charged_at_its_budget() -> None:
    entry = histogram_entry("t", profile(Owner()))
    assert entry is not None
    assert (entry.rho, entry.proven_rho, entry.state) == (0.02, 0.02, SpendState.SPENT)
    assert "unprotected" not in entry.mechanism


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((50, 50), "the data have 2 labels, the task 10"),
        ((9,) * 11, "the data have 11 labels, the task 10"),
        ((2_000_000,) * 10, "the data have 20000000 records"),
        ((0,) * 10, "no records"),
    ],
)
def test_data_that_do_not_fit_the_task_are_refused(labels: tuple[int, ...], said: str) -> None:
    learner = SyntheticLearner(labels=labels)
    with pytest.raises(OwnerLimit, match=said):
        check_records(spec=SPEC, learner=learner)
    with pytest.raises(OwnerLimit, match=said):
        profile(Owner(), learner=learner)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exact_histogram": True}, "unprotected release"),
        ({"privacy_value": 1000.0}, "privacy value 1000"),
        ({"lifetime_rho": 0.01}, "rho 0.01 is left, and the histogram needs 0.02"),
        ({"lifetime_rho": 0.05, "histogram_rho": 4.0}, "the histogram needs 0.1"),
        ({"no_histogram": True}, "selects clients by their label histograms"),
    ],
)
def test_impossible_limits_are_found_before_enrolling(options: dict[str, Any], said: str) -> None:
    owner = Owner(**options)
    account = PrivacyAccount(lifetime_rho=owner.lifetime_rho or 3.0)
    with pytest.raises(OwnerLimit, match=said):
        check_presentable(spec=SPEC, owner=owner, account=account)


def test_a_task_that_takes_all_clients_needs_no_histogram() -> None:
    check_presentable(spec=TAKES_ALL, owner=Owner(no_histogram=True), account=PrivacyAccount(lifetime_rho=0.01))


def test_each_round_has_its_own_release_name() -> None:
    assert [round_of(release_of(number)) for number in (1, 20, 999_999)] == [1, 20, 999_999]
    for name in ("histogram", "round/", "round/0", "round/x", "round/1/abc", "round/1\n", "round/12345678"):
        assert round_of(name) is None


@pytest.mark.parametrize(("device", "proven"), [("cpu", 0.1), ("cuda", 0.1), ("mps", math.inf), ("xpu", math.inf)])
def test_an_entry_shows_a_device_that_the_proofs_do_not_cover(device: str, proven: float) -> None:
    made = round_entry(task_id="t", spec=preset("digits"), round_number=1, rho=0.1, size=100, device_type=device)
    assert made.proven_rho == proven
    assert ("heuristic" in made.mechanism) == (device in made.mechanism) == math.isinf(proven)


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_a_claimed_entry_is_charged_without_a_guarantee(device: str) -> None:
    made = round_entry(
        task_id="t", spec=preset("digits"), round_number=1, rho=0.1, size=100, device_type=device, claimed=True
    )
    assert made.mechanism == "gradient_once, claimed by the owner's program: no privacy guarantee"
    assert made.rho == 0.1 and math.isinf(made.proven_rho)


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
