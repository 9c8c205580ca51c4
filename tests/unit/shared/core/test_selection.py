"""Label distance and who is kept."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.label_union import EXACT_UP_TO, nearest_union, union_distance
from qidpfl_shared.core.selection import (
    All,
    Random,
    SelectionStatus,
    Shortfall,
    Threshold,
    Union,
    given_reference,
    label_distances,
    pooled_reference,
    select,
    uniform_reference,
)

UNIFORM = [0.25] * 4


@st.composite
def tables(draw: st.DrawFn, *, clients: int = 7, labels: int = 4, least: int = 0) -> np.ndarray:
    rows = draw(st.integers(1, clients))
    cells = st.lists(st.integers(0, 50), min_size=labels, max_size=labels).filter(lambda row: sum(row) >= least)
    return np.array([draw(cells) for _ in range(rows)])


@given(tables())
def test_the_distance_is_twice_the_total_variation(table: np.ndarray) -> None:
    distances = label_distances(histograms=table, reference=UNIFORM)
    for row, distance in zip(table, distances, strict=True):
        assert 0 <= distance <= 2
        if row.sum():
            worst_event = max(
                abs(row[list(event)].sum() / row.sum() - len(event) / 4)
                for size in range(5)
                for event in itertools.combinations(range(4), size)
            )
            assert distance == pytest.approx(2 * worst_event)


def test_hand_worked_distances() -> None:
    table = [[5, 5, 5, 5], [20, 0, 0, 0], [10, 10, 0, 0], [0, 0, 0, 0]]
    assert label_distances(histograms=table, reference=UNIFORM).tolist() == [0, 1.5, 1.0, 2.0]


def test_a_reference_may_have_labels_that_no_client_has() -> None:
    assert label_distances(histograms=[[3, 1, 0]], reference=[3, 1, 0]).tolist() == [0]
    assert label_distances(histograms=[[0, 0, 7]], reference=[1, 1, 0]).tolist() == [2]


def test_a_client_exactly_at_the_threshold_passes() -> None:
    for threshold in np.arange(0.02, 2, 0.02).round(2):
        # 50 records over two labels: every distance is a multiple of 0.02 up to rounding.
        ones = round(25 * (1 + threshold / 2))
        if ones > 50:
            break
        table = [[ones, 50 - ones]]
        exact = 2 * abs(ones / 50 - 0.5)
        result = select(rule=Threshold(round(float(exact), 2)), histograms=table, reference=[0.5, 0.5], min_clients=1)
        assert result.selected.all(), (table, exact)


def test_the_threshold_keeps_near_clients_and_refuses_far_ones() -> None:
    table = [[5, 5, 5, 5], [20, 0, 0, 0], [6, 4, 5, 5]]
    result = select(rule=Threshold(0.5), histograms=table, reference=UNIFORM, min_clients=2)
    assert result.status is SelectionStatus.SELECTED
    assert result.selected.tolist() == [True, False, True]
    assert not result.filled_up.any()


def test_too_few_clients_fail_or_are_filled_up_with_the_nearest() -> None:
    table = [[20, 0, 0, 0], [5, 5, 5, 5], [10, 10, 0, 0], [9, 11, 0, 0], [0, 0, 0, 0]]
    failed = select(rule=Threshold(0.1), histograms=table, reference=UNIFORM, min_clients=3)
    assert failed.status is SelectionStatus.TOO_FEW_CLIENTS
    assert not failed.selected.any()
    filled = select(
        rule=Threshold(0.1), histograms=table, reference=UNIFORM, min_clients=3, shortfall=Shortfall.NEAREST
    )
    assert filled.status is SelectionStatus.FILLED_UP
    assert filled.selected.tolist() == [False, True, True, True, False]
    assert filled.filled_up.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("shortfall", Shortfall)
@pytest.mark.parametrize("rule", [Threshold(2.0), All(), Union(2), Random(2, 0)])
@pytest.mark.parametrize("table", [[], [[0, 0, 0, 0]], [[1, 1, 1, 1]], [[1, 1, 1, 1], [0, 0, 0, 0]]])
def test_fewer_clients_with_records_than_the_minimum_are_a_status(
    table: list[list[int]], rule: Threshold | All | Union | Random, shortfall: Shortfall
) -> None:
    result = select(rule=rule, histograms=table, reference=UNIFORM, min_clients=2, shortfall=shortfall)
    assert result.status is SelectionStatus.TOO_FEW_CLIENTS
    assert result.selected.tolist() == [False] * len(table)


@pytest.mark.parametrize("rule", [Threshold(2.0), All(), Union(2), Random(2, 0)])
def test_two_clients_with_records_are_enough_for_two(rule: Threshold | All | Union | Random) -> None:
    table = [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]
    result = select(rule=rule, histograms=table, reference=UNIFORM, min_clients=2)
    assert result.selected.tolist() == [True, False, True]


def best_union_by_hand(table: np.ndarray, least: int) -> float:
    best = np.inf
    for size in range(least, len(table) + 1):
        for members in itertools.combinations(range(len(table)), size):
            pooled = table[list(members)].sum(axis=0)
            best = min(best, float(np.abs(pooled / pooled.sum() - 0.25).sum()))
    return best


@settings(max_examples=50)
@given(tables(least=1), st.integers(1, 4))
def test_the_union_is_the_best_of_all_sets(table: np.ndarray, least: int) -> None:
    chosen = nearest_union(table.astype(float), np.full(4, 0.25), least)
    assert chosen.sum() >= min(least, len(table))
    if len(table) > least:
        distance = union_distance(table[chosen].sum(axis=0), np.full(4, 0.25))
        assert distance == pytest.approx(best_union_by_hand(table, least), abs=1e-9)


def test_of_equally_good_unions_the_largest_is_taken() -> None:
    table = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], dtype=float)
    assert nearest_union(table, np.full(4, 0.25), 1).all()


def test_skewed_clients_may_complete_each_other() -> None:
    table = [[10, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0], [0, 0, 0, 10], [40, 0, 0, 0]]
    alone = select(rule=Threshold(1.0), histograms=table, reference=UNIFORM, min_clients=2)
    together = select(rule=Union(2), histograms=table, reference=UNIFORM, min_clients=2)
    assert alone.status is SelectionStatus.TOO_FEW_CLIENTS
    assert together.selected.tolist() == [True, True, True, True, False]


def test_a_large_union_cannot_be_improved_by_one_step() -> None:
    rng = np.random.default_rng(0)
    table = rng.multinomial(100, rng.dirichlet([0.3] * 10, size=1)[0], size=60) + rng.poisson(
        rng.gamma(0.3, 20, size=(60, 10))
    )
    assert len(table) > EXACT_UP_TO
    reference = np.full(10, 0.1)
    chosen = nearest_union(table.astype(float), reference, 5)
    best = union_distance(table[chosen].sum(axis=0), reference)
    for flips in itertools.chain(((i,) for i in range(60)), itertools.combinations(range(60), 2)):
        neighbour = chosen.copy()
        neighbour[list(flips)] ^= True
        exchange = len(flips) == 1 or chosen[list(flips)].sum() == 1
        if exchange and neighbour.sum() >= 5:
            assert union_distance(table[neighbour].sum(axis=0), reference) >= best - 1e-9
    assert best <= union_distance(table.sum(axis=0), reference)


@given(tables(least=1), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_a_random_choice_keeps_the_given_number_of_clients_or_all(table: np.ndarray, count: int, seed: int) -> None:
    result = select(rule=Random(count, seed), histograms=table, reference=UNIFORM, min_clients=1)
    assert result.selected.sum() == min(count, len(table))
    assert not result.filled_up.any()


def test_a_random_choice_depends_on_its_seed_and_not_on_labels() -> None:
    near, far = [[5, 5, 5, 5]] * 10, [[n + 1, 0, 0, 0] for n in range(10)]
    chosen = select(rule=Random(4, 7), histograms=near, reference=UNIFORM, min_clients=4).selected
    assert np.flatnonzero(chosen).tolist() == sorted(np.random.RandomState(7).permutation(10)[:4].tolist())
    assert (select(rule=Random(4, 7), histograms=far, reference=UNIFORM, min_clients=4).selected == chosen).all()


@pytest.mark.slow
def test_random_choices_of_many_seeds_select_each_client_equally_often() -> None:
    table = [[5, 5, 5, 5], [20, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [9, 9, 9, 9]]
    rules = [Random(2, seed) for seed in range(2000)]
    draws = [select(rule=rule, histograms=table, reference=UNIFORM, min_clients=2).selected for rule in rules]
    kept = np.sum(draws, axis=0)
    # Two of the four with records: 1000 each, with a standard deviation of 22.
    assert kept[3] == 0
    assert np.abs(np.delete(kept, 3) - 1000).max() < 110


@pytest.mark.parametrize(("clients", "seed"), [(0, 1), (-1, 1), (1.5, 1), (2, -1), (2, 2**32), (2, True)])
def test_an_impossible_blind_choice_is_refused(clients: int, seed: int) -> None:
    with pytest.raises(ImpossibleArgument):
        Random(clients, seed)


def test_references_are_distributions() -> None:
    assert uniform_reference(labels=5).tolist() == [0.2] * 5
    assert given_reference(weights=[1, 3, 0]).tolist() == [0.25, 0.75, 0]
    assert pooled_reference(histograms=[[1, 0], [1, 2]]).tolist() == [0.5, 0.5]
    assert pooled_reference(histograms=[[0, 0], [0, 0]]).tolist() == [0.5, 0.5]


def test_the_union_of_a_partition_has_no_distance_to_its_pool() -> None:
    table = [[10, 0, 3], [0, 7, 1], [5, 5, 5]]
    reference = pooled_reference(histograms=table)
    assert label_distances(histograms=[np.sum(table, axis=0)], reference=reference)[0] == pytest.approx(0)
    assert select(rule=Union(1), histograms=table, reference=reference, min_clients=1).selected.all()


def test_iid_clients_differ_by_sampling_noise_alone() -> None:
    rng = np.random.default_rng(0)
    table = rng.multinomial(600, [0.1] * 10, size=2000)
    distances = label_distances(histograms=table, reference=uniform_reference(labels=10))
    # 2.39/sqrt(D) for ten balanced labels, to 2 % over 2000 clients.
    assert distances.mean() == pytest.approx(2.39 / np.sqrt(600), rel=0.02)


@pytest.mark.parametrize(
    "table", [[[1, 2], [1]], [[1, -1]], [[0.5, 0.5]], [[float("nan"), 1]], [["a", "b"]], [[1, 2, 3]]]
)
def test_impossible_histograms_are_refused(table: list[list[float]]) -> None:
    with pytest.raises(ImpossibleArgument):
        select(rule=All(), histograms=table, reference=[0.5, 0.5], min_clients=1)


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [float("inf"), 1]])
def test_impossible_references_are_refused(weights: list[float]) -> None:
    with pytest.raises(ImpossibleArgument):
        given_reference(weights=weights)


@pytest.mark.parametrize("threshold", [-0.1, 2.1, float("nan")])
def test_a_threshold_lies_between_nothing_and_two(threshold: float) -> None:
    with pytest.raises(ImpossibleArgument, match="distance_threshold"):
        Threshold(threshold)
