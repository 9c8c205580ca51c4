"""The auction: hand-worked rounds, truth against all lies on a grid, and what is not claimed."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.markets.auction import Auction, auction
from qidpfl_shared.core.markets.design import Terms
from qidpfl_shared.core.money import MICRO

WEIGHT = 30.0
FACTORS = np.linspace(0.5, 2.0, 81)
DESIGN = Auction(privacy_weight=WEIGHT, largest_value=2.0, smallest_rho=1e-6)


def utility_of(client: int, true: float, values: np.ndarray, **market: object) -> float:
    result = auction(privacy_values=values, privacy_weight=WEIGHT, **market)  # type: ignore[arg-type]
    return float(result.payments[client]) - WEIGHT * true * float(result.budgets[client])


def test_a_hand_worked_auction() -> None:
    result = auction(reward=12.0, privacy_values=[1.2, 1.0, 1.5, 1.1], privacy_weight=2.0, winners=3, largest_value=9.0)
    assert result.winners.tolist() == [True, True, False, True]
    assert result.price == 1.5
    assert result.budgets == pytest.approx([4 / 3, 4 / 3, 0, 4 / 3])
    assert result.payments == pytest.approx([4, 4, 0, 4])


def test_the_largest_value_is_the_price_if_all_win() -> None:
    result = auction(reward=6.0, privacy_values=[1.0, 1.5], privacy_weight=1.0, winners=5, largest_value=3.0)
    assert result.price == 3.0
    assert result.budgets.tolist() == [1.0, 1.0]


def test_of_two_equal_reports_the_earlier_one_wins() -> None:
    result = auction(reward=6.0, privacy_values=[1.0, 1.0, 1.0], privacy_weight=1.0, winners=2, largest_value=3.0)
    assert result.winners.tolist() == [True, True, False]
    assert result.price == 1.0


def test_without_clients_nothing_is_sold() -> None:
    result = auction(reward=6.0, privacy_values=[1.0], privacy_weight=1.0, winners=2, largest_value=3.0, caps=[0.0])
    assert not result.winners.any()
    assert result.payments.tolist() == [0.0]


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_no_lie_pays_in_300_markets(capped: bool, scored: bool) -> None:
    source = np.random.default_rng([18, capped, scored])
    worst = -math.inf
    for _ in range(75):
        count = int(source.integers(3, 8))
        values = source.uniform(0.5, 1.5, count)
        market = {
            "reward": float(source.uniform(1, 50)),
            "winners": int(source.integers(1, count + 1)),
            "largest_value": 3.0,
            "caps": source.uniform(0.001, 0.5, count) if capped else None,
            "scores": source.uniform(0.5, 2, count) if scored else None,
            "weights": source.uniform(0.5, 2, count) if scored else None,
        }
        for client in range(count):
            truth = utility_of(client, values[client], values, **market)
            assert truth >= -1e-15
            for factor in FACTORS:
                lies = values.copy()
                lies[client] *= factor
                worst = max(worst, utility_of(client, values[client], lies, **market) - truth)
    assert worst <= 1e-16


def test_in_the_contest_a_lower_report_earns_more() -> None:
    source = np.random.default_rng(18)
    gains = []
    for _ in range(50):
        values = source.uniform(0.95, 1.05, 10)
        lies = values.copy()
        lies[0] *= 0.8
        truth, lie = (
            equilibrium(reward=20, privacy_values=reported, privacy_weight=WEIGHT) for reported in (values, lies)
        )
        cost = WEIGHT * values[0]
        gains.append((lie.payments[0] - cost * lie.budgets[0]) / max(1e-9, truth.payments[0] - cost * truth.budgets[0]))
    assert float(np.median(gains)) > 1.5


@pytest.mark.parametrize("cap", [0.5, 2.0, 3.0])
def test_a_capped_winner_sells_its_cap_at_the_same_unit_price(cap: float) -> None:
    result = auction(
        reward=3.0, privacy_values=[1.0, 1.5], privacy_weight=1.0, winners=1, largest_value=2.0, caps=[cap, 9]
    )
    assert result.budgets[0] == min(cap, 2.0)
    assert result.payments[0] == pytest.approx(1.5 * min(cap, 2.0))


def test_skipping_capped_winners_would_make_lies_pay() -> None:
    """Why a winner whose cap is too small for its part still wins."""
    reward, caps = 3.0, (2.0, 3.0, 3.0)

    def skipping(values: tuple[float, ...]) -> tuple[int, float, float]:
        """The cheapest client that could sell the whole reward at the next report wins alone."""
        order = sorted(range(3), key=lambda client: values[client])
        for place, client in enumerate(order):
            price = values[order[place + 1]] if place < 2 else 9.0
            if reward / price <= caps[client]:
                return client, reward / price, price
        raise AssertionError

    winner, _, _ = skipping((1.0, 1.5, 2.0))
    assert winner == 0
    # The second client reports less, so that the first one would have to sell more than its cap.
    winner, rho, price = skipping((1.0, 1.4, 2.0))
    assert winner == 1
    assert rho * (price - 1.5) > 0


def test_two_clients_together_can_raise_the_price() -> None:
    """Not covered: collusion. The first loser reports more than its value, and a winner shares its gain with it."""
    values = np.array([1.0, 1.1, 1.2])
    market = {"reward": 10.0, "winners": 2, "largest_value": 3.0}
    lies = np.array([1.0, 1.1, 1.9])
    together = sum(utility_of(client, values[client], values, **market) for client in (0, 2))
    colluding = sum(utility_of(client, values[client], lies, **market) for client in (0, 2))
    assert colluding > together


def test_a_second_name_can_set_the_price() -> None:
    """Not covered: false names. A client that enrols twice may set the price of its own sale."""
    alone = auction(reward=10.0, privacy_values=[1.0, 1.1, 1.2], privacy_weight=1.0, winners=2, largest_value=9.0)
    named_twice = auction(
        reward=10.0, privacy_values=[1.0, 1.05, 1.1, 1.2], privacy_weight=1.0, winners=2, largest_value=9.0
    )
    assert named_twice.price != alone.price


def test_scores_change_the_order_and_the_unit_price() -> None:
    result = auction(
        reward=10.0,
        privacy_values=[1.0, 1.5, 2.0],
        privacy_weight=1.0,
        winners=2,
        largest_value=3.0,
        scores=[1.0, 3.0, 1.0],
        weights=[1.0, 4.0, 1.0],
    )
    assert result.winners.tolist() == [True, True, False]
    assert result.price == 2.0
    assert result.payments == pytest.approx([2.0, 8.0, 0.0])
    assert result.budgets == pytest.approx([1.0, 8 / 6, 0.0])


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ImpossibleArgument, match="winners"):
        auction(reward=1.0, privacy_values=[1.0], privacy_weight=1.0, winners=0, largest_value=1.0)
    with pytest.raises(ImpossibleArgument, match="scores"):
        auction(reward=1.0, privacy_values=[1.0], privacy_weight=1.0, winners=1, largest_value=1.0, scores=[0.0])


# --- the auction of a task -------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=12), st.integers(2, 12) | st.none())
def test_the_winners_have_the_smallest_reports_and_pay_no_attention_to_their_own(
    values: list[float], winners: int | None
) -> None:
    design = Auction(privacy_weight=WEIGHT, largest_value=2.0, smallest_rho=1e-6, winners=winners)
    reported = np.array(values)
    invited = design.invite(values=reported).invited
    count = min(len(values), max(2, len(values) - 1) if winners is None else winners)
    assert sorted(reported[invited]) == sorted(values)[:count]
    price = design.counted_values(values=reported, invited=invited)
    assert set(price.tolist()) == {sorted([*values, 2.0])[count]}


@given(
    st.integers(1, 10**12),
    st.integers(2, 60),
    st.floats(0.5, 2.0),
    st.data(),
)
def test_winners_that_sell_everything_spend_the_reward_exactly(
    reward_micro: int, winners: int, price: float, data: st.DataObject
) -> None:
    reward_micro = DESIGN.payable(reward_micro=reward_micro * winners + winners - 1, invited=winners)
    total = reward_micro / MICRO / (WEIGHT * price)
    full = total / winners
    split = DESIGN.split(
        reward_micro=reward_micro,
        total=total,
        declared=[full] * winners,
        planned=[full] * winners,
        delivered=[True] * winners,
    )
    assert split.payments == (reward_micro // winners,) * winners
    assert split.kept == 0
    sold = data.draw(st.lists(st.floats(0, 1), min_size=winners, max_size=winners))
    less = DESIGN.split(
        reward_micro=reward_micro,
        total=total,
        declared=[part * full for part in sold],
        planned=[full] * winners,
        delivered=[True] * winners,
    )
    assert sum(less.payments) + less.kept == reward_micro
    assert less.kept >= 0


def test_a_payment_does_not_depend_on_what_the_others_deliver() -> None:
    common = {"reward_micro": 300, "total": 3.0, "declared": [1.0, 0.5, 1.0], "planned": [1.0] * 3}
    assert DESIGN.split(**common, delivered=[True, True, True]).payments == (100, 50, 100)  # type: ignore[arg-type]
    assert DESIGN.split(**common, delivered=[True, False, False]).payments == (100, 0, 0)  # type: ignore[arg-type]


def terms(*, price: float = 1.1, reward_micro: int = 30 * MICRO, limit: float = 0.2) -> Terms:
    return Terms(reward_micro=reward_micro, total=reward_micro / MICRO / (WEIGHT * price), limit=limit)


def test_a_winner_sells_all_that_it_can() -> None:
    answer = DESIGN.answer(terms(), privacy_value=1.0, cap=0.15)
    assert answer.rho == 0.15
    assert answer.payment == pytest.approx(WEIGHT * 1.1 * 0.15)
    assert DESIGN.payment(terms(), 0.15) == math.floor(Fraction(WEIGHT * 1.1 * 0.15 * MICRO) + Fraction(1, 2))


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (terms(price=0.9), "below 1, the value that this winner has reported"),
        (terms(price=2.5), "above 2, the largest value of the task"),
        (terms(limit=5.0), "more than the 0.909091 that the reward buys"),
        (Terms(reward_micro=10, total=0.0, limit=1.0), "no budget"),
    ],
)
def test_a_winner_refuses_what_the_auction_cannot_offer(offered: Terms, said: str) -> None:
    refusal = DESIGN.refusal(offered, privacy_value=1.0)
    assert refusal is not None and said in refusal


def test_a_winner_cannot_see_a_price_set_by_a_shill() -> None:
    """A coordinator that invents the first loser may offer any price between the highest winner's value and ν̄."""
    assert all(DESIGN.refusal(terms(price=price), privacy_value=1.0) is None for price in (1.0, 1.3, 2.0))
