"""Verdicts on claims: each rule can hold, fail and stay undecided."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qidpfl_experiments.analysis.claims import PAPER_CLAIMS, Claim, Metric
from qidpfl_experiments.analysis.evaluate import Finding, Outcome, outcomes, resolution_in_words, write_claims
from qidpfl_experiments.analysis.our_claims import OUR_CLAIMS
from qidpfl_experiments.analysis.statistics import estimate
from qidpfl_experiments.analysis.verdicts import ClaimRule, Order, Verdict, all_of, verdict_on
from qidpfl_experiments.methods import BY_NAME
from qidpfl_experiments.results.mistakes import packed
from qidpfl_experiments.results.tables import CellRow, Key, MistakesRow, Tables
from support.synthetic_results import CLIENTS, DISCOUNT, ROUNDS, cell, cells, results

HIGHER = ClaimRule(order=Order.HIGHER, amount=0.3)
LOWER = ClaimRule(order=Order.LOWER, amount=0.3)
ALIKE = ClaimRule(order=Order.ALIKE, amount=1.0)
BY_DEFINITION = ClaimRule(order=Order.LOWER, amount=0.0, because="it is the least of all")
HOLDS, FAILS, TRIVIAL, OPEN = Verdict.HOLDS, Verdict.DOES_NOT_HOLD, Verdict.TRIVIALLY_TRUE, Verdict.NOT_DECIDED


def judged(rule: ClaimRule, values: Sequence[float]) -> Verdict:
    effect = estimate(values)
    assert effect is not None
    return verdict_on(rule, values, effect)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.0, 1.0], HOLDS),
        ([0.3, 0.3, 0.3], HOLDS),
        ([0.1, 0.11, 0.09, 0.1, 0.1], FAILS),
        ([0.0, 0.0, 0.0], FAILS),
        ([-1.0, -1.1, -0.9], FAILS),
        ([2.0, -1.0, 0.5], OPEN),
        # Above nothing for certain, but perhaps above the resolution and perhaps not.
        ([0.2, 0.35, 0.25, 0.28, 0.3], OPEN),
        ([5.0], OPEN),
        ([-5.0], OPEN),
    ],
)
def test_an_order_holds_if_it_is_certain_and_large_enough(values: list[float], verdict: Verdict) -> None:
    assert judged(HIGHER, values) is verdict
    assert judged(LOWER, [-value for value in values]) is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.1, -0.1, 0.2, 0.0, 0.1], HOLDS),
        ([0.0, 0.0], HOLDS),
        ([2.0, 2.1, 1.9], FAILS),
        ([-2.0, -2.1, -1.9], FAILS),
        ([1.0, 1.0], FAILS),
        ([0.9, 1.1, 1.0], OPEN),
        ([3.0, -3.0, 0.0], OPEN),
        ([0.0], OPEN),
    ],
)
def test_methods_are_alike_if_the_whole_interval_lies_within_the_margin(values: list[float], verdict: Verdict) -> None:
    assert judged(ALIKE, values) is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([-1.0, -1e-9, -5.0], TRIVIAL), ([-1.0], TRIVIAL), ([-1.0, 0.0], FAILS), ([-9.0, -9.0, 0.1], FAILS)],
)
def test_one_seed_refutes_a_claim_that_holds_by_construction(values: list[float], verdict: Verdict) -> None:
    assert judged(BY_DEFINITION, values) is verdict


def test_with_a_resolution_of_zero_an_effect_of_zero_does_not_hold() -> None:
    assert judged(ClaimRule(order=Order.HIGHER, amount=0.0), [0.0, 0.0, 0.0]) is FAILS


@pytest.mark.parametrize(
    ("verdicts", "complete", "together"),
    [
        ([HOLDS, HOLDS], True, HOLDS),
        ([HOLDS, TRIVIAL], True, HOLDS),
        ([TRIVIAL, TRIVIAL], True, TRIVIAL),
        ([HOLDS, OPEN], True, OPEN),
        ([HOLDS, OPEN, FAILS], True, FAILS),
        ([HOLDS], False, OPEN),
        ([TRIVIAL], False, OPEN),
        ([FAILS], False, FAILS),
    ],
)
def test_a_claim_needs_all_its_comparisons(verdicts: list[Verdict], complete: bool, together: Verdict) -> None:
    assert all_of(verdicts, complete=complete) is together


def test_a_contradictory_rule_is_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        ClaimRule(order=Order.HIGHER, amount=-0.1)
    with pytest.raises(ValueError, match="by construction"):
        ClaimRule(order=Order.ALIKE, amount=1.0, because="of course")


def outcome(identifier: str, tables: Tables, partition: str = "dirichlet") -> Outcome:
    found = (one for one in outcomes(tables) if one.claim.identifier == identifier)
    return next(one for one in found if one.condition.partition == partition)


def finding(identifier: str, rows: Sequence[CellRow]) -> Finding:
    (found,) = outcome(identifier, Tables(cells=tuple(rows))).findings
    return found


def test_claims_name_known_methods_and_have_unique_identifiers() -> None:
    claims: tuple[Claim, ...] = (*PAPER_CLAIMS, *OUR_CLAIMS)
    assert len({claim.identifier for claim in claims}) == len(claims)
    for comparison in (comparison for claim in claims for comparison in claim.comparisons):
        assert comparison.first in BY_NAME
        alone = (Metric.GROWTH, Metric.CLIENT_REGRET, Metric.SERVER_REGRET, Metric.DISTANCE)
        assert comparison.second in BY_NAME or comparison.metric in alone


def test_effects_are_first_minus_second_in_points_on_the_same_seeds() -> None:
    found = finding("selection-accuracy", cells({"fedavg": [80, 90, 70], "fedavg-select": [81, 91, 71]}))
    assert found.effect.mean == pytest.approx(1.0)
    assert found.effect.margin == pytest.approx(0.0, abs=1e-9)
    assert found.verdict is HOLDS


def test_a_selection_that_lowers_accuracy_refutes_the_claim() -> None:
    found = finding("selection-accuracy", cells({"fedavg": [81, 91, 71.2], "fedavg-select": [80, 90, 70]}))
    assert found.verdict is FAILS
    assert "the opposite holds" in found.remarks


def test_a_selection_that_keeps_all_clients_changes_nothing() -> None:
    rows = [
        cell(method, seed, accuracy=0.8 + seed / 100, selected=CLIENTS, digest=f"model-{seed}")
        for method in ("fedavg", "fedavg-select")
        for seed in range(4)
    ]
    found = finding("selection-accuracy", rows)
    assert (found.effect.mean, found.effect.low, found.effect.high) == (0.0, 0.0, 0.0)
    assert found.verdict is FAILS
    assert found.remarks == ("selection kept all clients", "identical models")


def test_a_selection_that_keeps_all_clients_in_some_seeds_says_in_how_many() -> None:
    rows = [
        replace(row, selected=CLIENTS) if row.method == "fedavg" or row.seed == 1 else row
        for row in cells({"fedavg": [80, 90, 70], "fedavg-select": [81, 91, 71]})
    ]
    assert finding("selection-accuracy", rows).remarks == ("selection kept all clients in 1 of 3 seeds",)


def test_an_effect_that_is_certain_but_small_does_not_hold() -> None:
    found = finding("selection-accuracy", cells({"fedavg": [80, 90, 70], "fedavg-select": [80.1, 90.11, 70.09]}))
    assert found.verdict is FAILS
    assert found.remarks == ("there is a difference, but it is smaller than the resolution",)


def test_one_seed_decides_nothing() -> None:
    found = finding("selection-accuracy", cells({"fedavg": [70], "fedavg-select": [90]}))
    assert found.verdict is OPEN
    assert found.effect.low is None
    assert "one seed, so there is no interval" in found.remarks


def with_mistakes(accuracies: dict[str, list[float]], flips: float) -> Tables:
    """Cells whose models answer the same test records: a second method errs on others with this probability."""
    dice, rows = np.random.default_rng(0), []
    for seed in range(5):
        wrong = dice.random(1000) < 0.1
        for method in accuracies:
            other = wrong if method == "fedavg" else wrong ^ (dice.random(1000) < flips)
            key = Key(dataset="mnist", partition="dirichlet", method=method, seed=seed)
            rows.append(MistakesRow(**vars(key), tested=1000, examined=1000, wrong=packed(other)))
    return Tables(cells=cells(accuracies), mistakes=tuple(rows))


def test_the_interval_includes_the_error_of_the_test_set() -> None:
    accuracies = {"fedavg": [80.0, 81, 82, 83, 84], "fedavg-select": [81.0, 82, 83, 84, 85]}
    (without,) = outcome("selection-accuracy", Tables(cells=cells(accuracies))).findings
    (found,) = outcome("selection-accuracy", with_mistakes(accuracies, 0.2)).findings
    assert without.test_error is None and without.effect.margin == pytest.approx(0.0, abs=1e-9)
    # Five seeds: a record's mean difference has a variance of 0.2 / 5, on 1000 records.
    assert found.test_error == pytest.approx(100 * math.sqrt(0.2 / 5 / 1000), rel=0.1)
    assert found.effect.margin == pytest.approx(1.96 * (found.test_error or 0.0), rel=1e-3)
    (same,) = outcome("selection-accuracy", with_mistakes(accuracies, 0.0)).findings
    assert same.test_error == 0.0


def test_the_resolution_says_how_many_seeds_it_needs() -> None:
    found = outcomes(Tables(cells=cells({"fedavg": [80.0, 81, 82], "fedavg-select": [81.0, 82.5, 82.5]})))
    assert resolution_in_words(found).startswith("0 of 1 comparisons of accuracy have as many seeds")
    assert "FedAvg-select − FedAvg on mnist, dirichlet" in resolution_in_words(found)
    assert resolution_in_words(()) == ""


def test_failed_cells_are_not_paired() -> None:
    rows = cells({"fedavg": [80, 81, 82], "fedavg-select": [81, 82, 10]})
    failed = tuple(replace(row, state="failed") if row.accuracy == 0.1 else row for row in rows)
    found = finding("selection-accuracy", failed)
    assert found.effect.n == 2
    assert found.effect.mean == pytest.approx(1.0)
    assert "1 seed was left out because one method has no value" in found.remarks


def test_the_lowest_accuracy_of_four_needs_three_comparisons() -> None:
    table = {"fedavg": [90, 91, 92], "fedavg-select": [90, 91, 92], "qi-dpfl": [89, 90, 91], "fedavg-dp": [85, 86, 87]}
    assert outcome("fedavg-dp-lowest", Tables(cells=cells(table))).verdict is HOLDS
    worse = table | {"qi-dpfl": [84, 85, 86]}
    assert outcome("fedavg-dp-lowest", Tables(cells=cells(worse))).verdict is FAILS
    fewer = {name: values for name, values in table.items() if name != "fedavg"}
    found = outcome("fedavg-dp-lowest", Tables(cells=cells(fewer)))
    assert found.verdict is OPEN
    assert not found.is_complete
    assert [one.verdict for one in found.findings] == [HOLDS, HOLDS]


def with_money(costs: dict[str, list[float]], *, rewards: dict[str, float] | None = None) -> Tables:
    return Tables(
        cells=tuple(
            cell(method, seed, accuracy=0.8, cost=cost, reward=(rewards or {}).get(method, 1.0))
            for method, values in costs.items()
            for seed, cost in enumerate(values)
        )
    )


def test_the_lowest_cost_among_the_same_clients_is_trivial_and_can_be_refuted() -> None:
    costs = {"qi-dpfl": [8.0, 9.0], "max-select": [10.0, 10.0], "random-select": [9.0, 9.5]}
    found = outcome("lowest-cost", with_money(costs))
    assert found.verdict is TRIVIAL
    assert found.findings[0].effect.mean == pytest.approx(-15.0)
    refuted = outcome("lowest-cost", with_money(costs | {"random-select": [9.0, 8.9]}))
    assert refuted.verdict is FAILS
    assert "violated in 1 of 2 seeds, although it holds by construction" in refuted.findings[1].remarks


def test_the_cost_with_other_clients_is_measured() -> None:
    others = {"max": [10.0, 10.1], "random": [9.0, 9.1], "fedavg-dp": [8.5, 8.6]}
    assert outcome("lowest-cost-everybody", with_money({"qi-dpfl": [8.0, 8.1], **others})).verdict is HOLDS
    assert outcome("lowest-cost-everybody", with_money({"qi-dpfl": [8.8, 8.9], **others})).verdict is FAILS


def test_a_reward_range_that_binds_makes_qi_dpfl_pay_as_much_as_max() -> None:
    costs = {"qi-dpfl": [1.0, 1.0], "max": [1.0, 1.0], "max-select": [1.0, 1.0]}
    found = outcome("less-reward-than-max", with_money(costs, rewards={"qi-dpfl": 5.0, "max": 5.0, "max-select": 5.0}))
    assert found.verdict is FAILS
    assert "exactly equal" in found.findings[0].remarks
    less = outcome("less-reward-than-max", with_money(costs, rewards={"qi-dpfl": 4.0, "max": 5.0, "max-select": 5.0}))
    assert less.verdict is TRIVIAL


def test_the_advantage_on_non_iid_data_is_a_difference_of_differences() -> None:
    among_iid = cells({"qi-dpfl": [80, 90, 70], "fedavg-dp": [81, 91, 71]}, partition="iid")
    elsewhere = cells({"qi-dpfl": [60, 50, 40], "fedavg-dp": [59, 49, 39]})
    tables = Tables(cells=(*among_iid, *elsewhere))
    found = outcome("non-iid-advantage", tables)
    assert found.findings[0].effect.mean == pytest.approx(2.0)
    assert found.verdict is HOLDS
    assert {one.condition.partition for one in outcomes(tables) if one.claim.identifier == "non-iid-advantage"} == {
        "dirichlet"
    }
    assert "non-iid-advantage" not in {one.claim.identifier for one in outcomes(Tables(cells=elsewhere))}


def test_growing_rewards_are_trivial_and_the_remark_names_the_discount() -> None:
    found = outcome("reward-grows", results(methods=("qi-dpfl",), seeds=2)).findings[0]
    assert found.effect.mean == pytest.approx(100 * (DISCOUNT ** ((1 - ROUNDS) / 2) - 1))
    assert found.verdict is TRIVIAL
    assert any(f"a discount of {DISCOUNT:.4f}" in remark for remark in found.remarks)


def test_rewards_that_do_not_grow_refute_the_claim() -> None:
    tables = results(methods=("qi-dpfl",), seeds=2)
    flat = replace(tables, rounds=tuple(replace(row, reward=7.0) for row in tables.rounds))
    assert outcome("reward-grows", flat).verdict is FAILS


@pytest.mark.parametrize(
    ("smallest", "largest", "told"),
    [
        (7.0, 53.0, "QI-DPFL pays the smallest admissible reward in 24 of 24 rounds"),
        (5.0, 7.0, "QI-DPFL pays the largest admissible reward in 24 of 24 rounds"),
        (5.0, None, ""),
        (5.0, 53.0, ""),
    ],
)
def test_a_remark_names_the_limit_that_determines_the_reward(smallest: float, largest: float | None, told: str) -> None:
    tables = results(methods=("qi-dpfl", "random-select"), partitions=("dirichlet",), seeds=2)
    rounds = tuple(replace(row, reward=7.0) if row.method == "qi-dpfl" else row for row in tables.rounds)
    fit = replace(tables.fits[0], reward_min=smallest, reward_max=largest)
    bound = replace(tables, rounds=rounds, fits=(fit,))
    for identifier in ("reward-grows", "less-reward-than-random", "lowest-cost"):
        remarks = outcome(identifier, bound).findings[0].remarks
        assert [remark for remark in remarks if " reward in " in remark] == ([told] if told else [])


def test_without_admissible_rewards_the_swept_ones_are_the_range() -> None:
    tables = results(methods=("qi-dpfl",), partitions=("dirichlet",), seeds=1)
    fits = (replace(tables.fits[0], reward_min=None, reward_max=None),)
    rounds = tuple(replace(row, reward=80.0) for row in tables.rounds)
    remarks = outcome("reward-grows", replace(tables, fits=fits, rounds=rounds)).findings[0].remarks
    assert "QI-DPFL pays the largest swept reward in 12 of 12 rounds" in remarks


def test_a_custom_method_is_compared_with_qi_dpfl_and_fedavg_dp() -> None:
    found = outcomes(results(methods=("qi-dpfl", "fedavg-dp", "my-rule"), partitions=("dirichlet",)))
    own = [one.claim.identifier for one in found if one.claim.source == "own"]
    measures = ("accuracy", "reward", "cost", "epsilon")
    expected = [f"my-rule-{measure}{mark}" for mark in ("", "-fedavg-dp") for measure in measures]
    assert own == expected


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([0.1] * 5, HOLDS), ([0.1] * 4, OPEN), ([0.1, 0.2, 0.3, 0.1, -0.01], FAILS), ([0.0] * 5, FAILS)],
)
def test_an_order_in_each_seed_needs_five_seeds_that_all_agree(values: list[float], verdict: Verdict) -> None:
    assert judged(ClaimRule(order=Order.HIGHER, amount=0.0, each_seed=True), values) is verdict
    assert judged(ClaimRule(order=Order.LOWER, amount=0.0, each_seed=True), [-one for one in values]) is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([0.0, 0.0, 0.0], HOLDS), ([-5.0, -6.0], HOLDS), ([2.0, 2.1, 2.0], FAILS), ([0.5, 2.0, 0.1], OPEN), ([0.0], OPEN)],
)
def test_not_higher_holds_if_the_whole_interval_is_at_most_the_amount(values: list[float], verdict: Verdict) -> None:
    assert judged(ClaimRule(order=Order.NOT_HIGHER, amount=1.0), values) is verdict


def test_a_check_of_a_theorem_needs_no_second_method() -> None:
    rows = [replace(cell("qi-dpfl", seed, accuracy=0.8), client_regret=0.001 * seed) for seed in range(5)]
    found = finding("theorem-1", rows)
    assert found.verdict is HOLDS and found.effect.mean == pytest.approx(0.002)
    worse = [replace(row, client_regret=3.0) for row in rows]
    assert finding("theorem-1", worse).verdict is FAILS
    assert "theorem-2" not in {one.claim.identifier for one in outcomes(Tables(cells=tuple(rows)))}


def with_a_liar(gain: float) -> Tables:
    """Runs in which client 3 lies, and earns so much more than an honest one."""
    tables = results(methods=("contest-honest", "contest-low"), partitions=("dirichlet",))
    clients = []
    for row in tables.clients:
        lies = row.method == "contest-low" and row.ordinal == 3
        clients.append(replace(row, utility=1.0 + gain * lies, misreport=0.8 if lies else 1.0))
    return replace(tables, clients=tuple(clients))


def test_the_gain_of_a_lie_is_that_of_the_liar_alone() -> None:
    tables = with_a_liar(2.0)
    found = outcome("contest-lie-pays", tables)
    paid = tables.cells[0].paid / CLIENTS
    assert found.findings[0].effect.mean == pytest.approx(200 / paid)
    assert found.verdict is HOLDS
    assert outcome("contest-lie-pays", with_a_liar(-2.0)).verdict is FAILS


def test_claims_whose_methods_were_not_run_are_not_judged() -> None:
    assert outcomes(Tables(cells=cells({"fedavg": [80, 81]}))) == ()
    assert outcomes(Tables()) == ()


def test_the_claims_file_has_a_line_for_every_comparison(tmp_path: Path) -> None:
    found = outcomes(results(seeds=2))
    write_claims(tmp_path / "claims.csv", found)
    with (tmp_path / "claims.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(one.findings) for one in found)
    first = found[0].findings[0]
    assert float(lines[0]["effect"]) == first.effect.mean
    assert lines[0]["verdict"] == first.verdict
    assert {line["claim_verdict"] for line in lines} <= {str(verdict) for verdict in Verdict}
