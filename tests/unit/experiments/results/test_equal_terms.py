"""ε for equal money and money for equal ε: computed along budgets that are proportional to money."""

from dataclasses import replace

import pytest

from qidpfl_experiments.analysis.summary import summary
from qidpfl_experiments.results.equal_terms import epsilon_for_money, money_for_rho
from qidpfl_experiments.results.tables import ClientRow, Guarantee
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from support.synthetic_results import cell, results

CELL = replace(cell("qi-auction", 0, accuracy=0.8, reward=10.0), spent_rho=0.25, delta=1e-5)
(ROW, *_) = results(methods=("qi-dpfl",), partitions=("iid",), seeds=1).clients
# Each client has a histogram of 0.05; the second one sells most.
CLIENTS: list[ClientRow] = [
    replace(ROW, method="qi-auction", ordinal=place, updates=10, mean_rho=rho, spent_rho=0.05 + 10 * rho)
    for place, rho in enumerate((0.01, 0.02))
]


def test_twice_the_money_buys_twice_the_budgets_but_no_second_histogram() -> None:
    assert epsilon_for_money(CELL, CLIENTS, 10.0) == pytest.approx(epsilon_from_rho(rho=0.25, delta=1e-5))
    assert epsilon_for_money(CELL, CLIENTS, 20.0) == pytest.approx(epsilon_from_rho(rho=0.45, delta=1e-5))


def test_the_worst_client_limits_the_money() -> None:
    assert money_for_rho(CELL, CLIENTS, 0.25) == pytest.approx(10.0)
    assert money_for_rho(CELL, CLIENTS, 0.15) == pytest.approx(5.0)
    assert money_for_rho(CELL, CLIENTS, 0.04) is None


def test_there_is_no_such_number_without_a_proven_guarantee_or_payments() -> None:
    for other in (replace(CELL, guarantee=Guarantee.HEURISTIC), replace(CELL, paid=0.0)):
        assert epsilon_for_money(other, CLIENTS, 10.0) is None and money_for_rho(other, CLIENTS, 0.2) is None


def test_the_summary_compares_with_qi_dpfl_of_the_same_seed() -> None:
    rows = {row.method.name: row for row in summary(results(methods=("fedavg", "qi-dpfl", "max"), partitions=("iid",)))}
    assert rows["fedavg"].epsilon_at_equal_money is None
    same = rows["qi-dpfl"].money_at_equal_epsilon
    assert same is not None and rows["max"].epsilon_at_equal_money is not None
