"""zCDP read as (epsilon, delta): order, inverses, a published table, and an independent library."""

import math

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy.conversion import Reading, epsilon_from_rho, gaussian_delta, rho_from_epsilon

rhos = st.floats(-12, 6).map(lambda x: 10**x)
deltas = st.floats(-60, -0.01).map(lambda x: 10**x)
TABLE = [
    (0.001, 0.2156, 0.1573, 0.1417),
    (0.01, 0.6886, 0.5457, 0.4970),
    (0.1, 2.2460, 1.9142, 1.7601),
    (1, 7.7861, 7.0772, 6.5730),
    (10, 31.4597, 30.1109, 28.3735),
]


@given(rhos, deltas)
def test_simple_is_at_least_tight_is_at_least_exact(rho: float, delta: float) -> None:
    simple, tight, exact = (epsilon_from_rho(rho=rho, delta=delta, reading=reading) for reading in Reading)
    assert simple * (1 + 1e-9) >= tight
    assert tight * (1 + 1e-9) >= exact >= 0


@pytest.mark.parametrize(("rho", "simple", "tight", "exact"), TABLE)
def test_known_values_at_delta_one_in_a_hundred_thousand(rho: float, simple: float, tight: float, exact: float) -> None:
    read = [round(epsilon_from_rho(rho=rho, delta=1e-5, reading=reading), 4) for reading in Reading]
    assert read == [simple, tight, exact]


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.05, 0.3, 2.0])
def test_an_independent_accountant_agrees(rho: float) -> None:
    event = GaussianDpEvent(noise_multiplier=1 / math.sqrt(2 * rho))
    exact = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-5)
    assert epsilon_from_rho(rho=rho, delta=1e-5, reading=Reading.GAUSSIAN) == pytest.approx(exact, rel=1e-4)
    orders = [1 + x / 20 for x in range(1, 2000)]
    tight = RdpAccountant(orders=orders).compose(event).get_epsilon(1e-5)
    assert epsilon_from_rho(rho=rho, delta=1e-5) == pytest.approx(tight, rel=1e-3)


@given(rhos, deltas, st.sampled_from(Reading))
def test_back_and_forth_returns(rho: float, delta: float, reading: Reading) -> None:
    epsilon = epsilon_from_rho(rho=rho, delta=delta, reading=reading)
    back = rho_from_epsilon(epsilon=epsilon, delta=delta, reading=reading)
    if epsilon > 0:
        assert back == pytest.approx(rho, rel=1e-6)
    else:
        assert back >= rho * (1 - 1e-9)


@given(st.floats(1e-6, 1e4), deltas, st.sampled_from(Reading))
def test_the_largest_rho_for_an_epsilon_is_exactly_that(epsilon: float, delta: float, reading: Reading) -> None:
    rho = rho_from_epsilon(epsilon=epsilon, delta=delta, reading=reading)
    assert epsilon_from_rho(rho=rho, delta=delta, reading=reading) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_from_rho(rho=rho * 1.01, delta=delta, reading=reading) > epsilon


@given(st.floats(1e-4, 50), st.floats(0, 100))
def test_the_exact_delta_is_that_of_its_epsilon(rho: float, epsilon: float) -> None:
    delta = gaussian_delta(rho=rho, epsilon=epsilon)
    if 1e-300 < delta < 1 - 1e-9:
        again = epsilon_from_rho(rho=rho, delta=delta, reading=Reading.GAUSSIAN)
        assert again == pytest.approx(epsilon, rel=1e-6, abs=1e-6)


def test_nothing_released_costs_nothing_and_everything_released_costs_everything() -> None:
    for reading in Reading:
        assert epsilon_from_rho(rho=0, delta=1e-5, reading=reading) == 0
        assert epsilon_from_rho(rho=math.inf, delta=1e-5, reading=reading) == math.inf


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ImpossibleArgument, match="delta"):
        epsilon_from_rho(rho=0.1, delta=delta)
    with pytest.raises(ImpossibleArgument, match="delta"):
        rho_from_epsilon(epsilon=0.1, delta=delta)
