"""The privacy account: append-only, a filter over its lifetime, honest about what is unproven."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.account import (
    DuplicateRelease,
    LifetimeExceeded,
    PrivacyAccount,
    Release,
    ReleaseRefused,
    UnprovenRelease,
)
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.privacy.views import central_rho, system_statement


def release(name: str, rho: float, proven_rho: float | None = None) -> Release:
    return Release(name=name, mechanism="gradient_once", rho=rho, proven_rho=rho if proven_rho is None else proven_rho)


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0.1, 5))
def test_the_lifetime_budget_holds_for_all_charges(rhos: list[float], lifetime: float) -> None:
    account = PrivacyAccount(lifetime_rho=lifetime)
    for index, rho in enumerate(rhos):
        try:
            account = account.charge(release(f"round/{index}", rho))
        except LifetimeExceeded:
            assert account.spent_rho + rho > lifetime
    assert account.spent_rho <= lifetime * (1 + 1e-12)
    assert account.spent_rho == pytest.approx(sum(entry.rho for entry in account.releases))


def test_three_tenths_fit_into_three_times_a_tenth_and_no_more() -> None:
    account = PrivacyAccount(lifetime_rho=0.3)
    for index in range(3):
        account = account.charge(release(f"round/{index}", 0.1))
    assert account.remaining_rho == 0
    with pytest.raises(LifetimeExceeded, match="round/3"):
        account.charge(release("round/3", 1e-9))


def test_a_refused_release_leaves_no_trace() -> None:
    account = PrivacyAccount(lifetime_rho=1).charge(release("histogram", 0.5))
    for refused in (release("round/1", 0.6), release("histogram", 0.1), release("round/1", 0.1, proven_rho=9)):
        with pytest.raises(ReleaseRefused):
            account.charge(refused)
    assert account.spent_rho == 0.5
    assert len(account.releases) == 1


def test_the_same_release_is_never_recorded_twice() -> None:
    account = PrivacyAccount().charge(release("round/1", 0.1))
    with pytest.raises(DuplicateRelease):
        account.charge(release("round/1", 0.1))


def test_an_account_cannot_be_changed_in_place() -> None:
    account = PrivacyAccount().charge(release("round/1", 0.1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        account.releases = ()  # type: ignore[misc]


def test_the_proven_budget_counts() -> None:
    account = PrivacyAccount(lifetime_rho=10, accept_unproven=True)
    account = account.charge(release("round/1", 0.01, proven_rho=3600))
    assert account.spent_rho == 3600
    assert account.epsilon(delta=1e-5) > 3000


def test_unproven_releases_need_the_owners_consent_and_switch_the_limit_off() -> None:
    exact_histogram = release("histogram", 0.0, proven_rho=math.inf)
    assert exact_histogram.unprotected
    with pytest.raises(UnprovenRelease, match="not accepted"):
        PrivacyAccount(lifetime_rho=1).charge(exact_histogram)
    account = PrivacyAccount(lifetime_rho=1, accept_unproven=True)
    assert account.limited
    account = account.charge(exact_histogram)
    assert not account.limited
    assert account.remaining_rho == math.inf
    assert account.epsilon(delta=1e-5) == math.inf


def test_accept_unproven_alone_does_not_lift_the_limit() -> None:
    account = PrivacyAccount(lifetime_rho=0.1, accept_unproven=True)
    with pytest.raises(LifetimeExceeded):
        account.charge(release("round/1", 0.2))


def test_the_system_is_as_private_as_its_least_private_client() -> None:
    first = PrivacyAccount().charge(release("round/1", 0.1)).charge(release("round/2", 0.2))
    second = PrivacyAccount().charge(release("round/1", 0.25))
    statement = system_statement(accounts=[first, second], delta=1e-5)
    assert statement.rho == pytest.approx(0.3)
    assert statement.epsilon == pytest.approx(epsilon_from_rho(rho=0.3, delta=1e-5))
    assert "0.3-zCDP" in str(statement)


def test_the_system_statement_does_not_hide_what_is_unprotected() -> None:
    exposed = PrivacyAccount(accept_unproven=True).charge(release("histogram", 0, proven_rho=math.inf))
    heuristic = PrivacyAccount(accept_unproven=True).charge(release("round/1", 0.01, proven_rho=36.0))
    assert "no privacy guarantee" in str(system_statement(accounts=[exposed], delta=1e-5))
    assert "1 releases guarantee less than declared" in str(system_statement(accounts=[heuristic], delta=1e-5))
    assert system_statement(accounts=[], delta=1e-5).rho == 0


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.1, 1), st.floats(0.1, 10)), min_size=1, max_size=8))
def test_the_noise_of_the_others_protects_in_a_trusted_sum(clients: list[tuple[float, float, float]]) -> None:
    budgets, weights, stds = ([client[k] for client in clients] for k in range(3))
    seen = central_rho(budgets=budgets, weights=weights, noise_stds=stds)
    assert (seen <= [rho * (1 + 1e-12) for rho in budgets]).all()
    # Sensitivity p·Δ against the summed noise, with Δ from each client's own rho = Δ²/2σ².
    variance = sum((p * s) ** 2 for p, s in zip(weights, stds, strict=True))
    for value, rho, p, s in zip(seen, budgets, weights, stds, strict=True):
        assert value == pytest.approx((p * math.sqrt(2 * rho) * s) ** 2 / (2 * variance))


def test_without_noise_a_trusted_sum_adds_no_protection() -> None:
    assert central_rho(budgets=[0.1, 0.2], weights=[0.5, 0.5], noise_stds=[0, 0]).tolist() == [0.1, 0.2]


@pytest.mark.parametrize("rho", [-0.1, math.nan, math.inf])
def test_impossible_releases_are_refused(rho: float) -> None:
    with pytest.raises(ImpossibleArgument, match="rho"):
        release("round/1", rho, proven_rho=1)
    with pytest.raises(ImpossibleArgument, match="name"):
        release("", 0.1)
