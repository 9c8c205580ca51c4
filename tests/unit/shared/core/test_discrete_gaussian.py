"""The sampler is exact: it decides like exact arithmetic, and its table covers the whole distribution."""

import math

import numpy as np
import pytest
from scipy import stats

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy import discrete_gaussian as sampler
from qidpfl_shared.core.privacy.discrete_gaussian import GRID, add_noise, discrete_gaussian, grid_slack

SIGN = 1 << 12
PLACES = 1 << 37
UNIFORMS = 1 << 14
LAST_SLOT = (1 << 12) - 1


def seeded(seed: int) -> sampler.Bits:
    return lambda name, length: np.random.default_rng([seed, *name.encode()]).bytes(length)


def word(*, slot: int, place: int = 0, uniform: int = 0, negative: bool = False) -> int:
    return slot | (SIGN if negative else 0) | place << 13 | uniform << 50


def accepted(single: int, bits: sampler.Bits) -> list[float]:
    values: list[float] = sampler._accepted("0", single.to_bytes(8, "little"), bits).tolist()
    return values


def test_the_fast_decisions_are_those_of_exact_arithmetic() -> None:
    data = seeded(1)("words", 8 * 4000)
    exact = []
    for index, single in enumerate(np.frombuffer(data, "<u8")):
        place, taken = sampler._decided(int(single), f"0/{index}", seeded(2))
        if taken:
            exact.append(-place * GRID if int(single) & SIGN else place * GRID)
    assert sampler._accepted("0", data, seeded(2)).tolist() == exact
    assert 0.9 < len(exact) / 4000 < 0.96


def test_every_strip_has_room_for_its_density_and_the_table_is_full() -> None:
    assert len(sampler._STRIPS) == 1 << 12
    for strip, weight in set(sampler._STRIPS):
        assert sum(owner == strip for owner, _ in sampler._STRIPS) == weight
        assert weight >= sampler._HEIGHT * math.exp(-0.5 * (strip / 8) ** 2)
    assert {strip for strip, _ in sampler._STRIPS} == set(range(12 * 8 + 1))


@pytest.mark.slow
def test_the_strips_have_the_probabilities_of_a_gaussian() -> None:
    values = discrete_gaussian(1_000_000, bits=seeded(3))
    edges = np.r_[-np.inf, np.arange(-4, 4.01, 0.125), np.inf]
    counts, _ = np.histogram(values, edges)
    expected = np.diff(stats.norm.cdf(edges)) * values.size
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    assert np.array_equal(values / GRID, np.rint(values / GRID))


@pytest.mark.parametrize(("further", "taken"), [(b"\0", True), (b"\xff", False)])
def test_further_bits_decide_where_the_first_ones_cannot(further: bytes, taken: bool) -> None:
    strip, weight = sampler._STRIPS[2000]
    value = (strip * PLACES + 5) * GRID
    limit = math.exp(-0.5 * value**2) * sampler._HEIGHT / weight * UNIFORMS
    unsure = word(slot=2000, place=5, uniform=math.floor(limit))
    asked = []

    def bits(name: str, length: int) -> bytes:
        asked.append(name)
        return further * length

    assert accepted(unsure, bits) == ([value] if taken else [])
    assert asked == ["0/0/0"]


def test_values_beyond_the_table_are_possible_and_as_rare_as_they_must_be() -> None:
    beyond = word(slot=LAST_SLOT, place=7)
    # Half of the words choose the first strip beyond, the next half of them the second one.
    second_strip = (1 << 62).to_bytes(8, "big")
    zeros = {"0/0/0": second_strip}
    assert accepted(beyond, lambda name, length: zeros.get(name, bytes(length))) == [((12 * 8 + 1) * PLACES + 7) * GRID]
    # The probability is about 10^-29: forty zero bits are not enough.
    rare = {"0/0/0": second_strip, "0/0/1": (1 << 24).to_bytes(8, "big")}
    assert accepted(beyond, lambda name, length: rare.get(name, bytes(length))) == []
    assert accepted(word(slot=LAST_SLOT, uniform=1), seeded(0)) == []


def test_zero_counts_once() -> None:
    assert accepted(word(slot=0), seeded(0)) == [0.0]
    assert accepted(word(slot=0, negative=True), seeded(0)) == []


def test_a_shorter_draw_is_the_beginning_of_a_longer_one() -> None:
    longer = discrete_gaussian(2 * sampler.PIECE, bits=_stream)
    for count in (0, 1, 100, 31_000, sampler.PIECE + 5):
        assert np.array_equal(discrete_gaussian(count, bits=_stream), longer[:count])


def _stream(name: str, length: int) -> bytes:
    return np.random.default_rng([*name.encode()]).bytes(8 * sampler.PIECE)[:length]


def test_few_accepted_candidates_are_replaced_by_a_whole_piece() -> None:
    rejected = word(slot=LAST_SLOT, uniform=5).to_bytes(8, "little")
    lengths = []

    def bits(name: str, length: int) -> bytes:
        if "/" not in name:
            lengths.append(length)
        return rejected * (length // 8) if len(lengths) == 1 else _stream(name, length)

    assert discrete_gaussian(10, bits=bits).size == 10
    assert lengths == [8 * (10 + 1 + 64), 8 * sampler.PIECE]


def test_a_sum_with_noise_lies_on_the_grid_and_keeps_the_value() -> None:
    rng = np.random.default_rng(5)
    values, std = rng.standard_normal(1000), 0.37
    draws = discrete_gaussian(1000, bits=seeded(6))
    noised = add_noise(values=values, std=std, standard_noise=draws)
    assert np.abs(noised - values - std * draws).max() <= std * GRID
    exact = add_noise(values=values, std=1.0, standard_noise=draws) / GRID
    assert np.array_equal(exact, np.rint(exact))


def test_moving_to_the_grid_adds_at_most_a_step_per_value_to_a_distance() -> None:
    rng = np.random.default_rng(7)
    first, std = rng.standard_normal(500), 2.0**30
    second = first + rng.standard_normal(500) * 1e-3
    zeros = np.zeros(500)
    moved = [add_noise(values=values, std=std, standard_noise=zeros) / std for values in (first, second)]
    distance = float(np.linalg.norm(first - second)) / std
    assert np.linalg.norm(moved[0] - moved[1]) <= distance + math.sqrt(500) * GRID
    assert grid_slack(dimension=500, rho=distance**2 / 2) * distance == pytest.approx(math.sqrt(500) * GRID)


@pytest.mark.parametrize("bad", [{"std": 0.0}, {"std": math.nan}, {"standard_noise": [1.0]}, {"values": [math.inf, 0]}])
def test_impossible_arguments_are_refused(bad: dict[str, object]) -> None:
    arguments: dict[str, object] = {"values": [1.0, 2.0], "std": 1.0, "standard_noise": [0.0, 0.0]} | bad
    with pytest.raises(ImpossibleArgument):
        add_noise(**arguments)  # type: ignore[arg-type]
