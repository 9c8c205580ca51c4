"""Measures the speed of the core and compares it with numpy on the same data. It prints results and checks nothing."""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import ndtri

from qidpfl_shared.core.aggregation import Parameters, weighted_mean
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.markets.design import MarketKind
from qidpfl_shared.core.money import split_reward
from qidpfl_shared.core.participation import participation
from qidpfl_shared.core.planning import PlanStatus, plan_round
from qidpfl_shared.core.privacy.discrete_gaussian import PIECE, discrete_gaussian
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each measurement; the fastest counts")
    repeats = parser.parse_args().repeats
    measure_equilibria(repeats)
    measure_rounds(repeats)
    measure_markets(repeats)
    measure_plans_with_caps(repeats)
    measure_aggregation(repeats)
    measure_noise(repeats)


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs. Slower runs show other load of the machine."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_equilibria(repeats: int) -> None:
    print("Stage II equilibrium; numpy: one sort and one cumulative sum of the same values")
    rng = np.random.default_rng(0)
    for clients in (1_000, 10_000, 100_000):
        values = rng.uniform(0.95, 1.05, clients)
        free = partial(equilibrium, reward=10, privacy_values=values, privacy_weight=1)
        capped = partial(free, caps=free().total * rng.uniform(0, 0.001, clients))
        limit = best_seconds(partial(sort_and_sum, values), repeats)
        for label, solve in (("", free), (", caps binding", capped)):
            seconds = best_seconds(solve, repeats)
            print(f"  {f'{clients:,} clients{label}':40s} {seconds * 1e3:9.2f} ms  {seconds / limit:5.1f} x numpy")


def measure_rounds(repeats: int) -> None:
    print("Other parts of a round")
    rng = np.random.default_rng(1)
    rules = preset("mnist").round_rules()
    for clients in (1_000, 100_000):
        values = rng.uniform(0.95, 1.05, clients)
        participants = [Participant(privacy_value=float(value), size=3000) for value in values]
        costs = rng.uniform(0, 1e-3, clients)
        measurements: dict[str, Callable[[], object]] = {
            "plan_round": partial(
                plan_round, rules=rules, round_number=1, participants=participants, reward_left_micro=10**12
            ),
            "withdrawal of equals": partial(
                participation, reward=10, privacy_values=np.ones(clients), privacy_weight=1, fixed_costs=costs
            ),
            "exact split": partial(
                split_reward, reward_micro=10**9, declared=values.tolist(), delivered=[True] * clients
            ),
        }
        for name, function in measurements.items():
            print(f"  {f'{name}, {clients:,} clients':40s} {best_seconds(function, repeats) * 1e3:9.2f} ms")


def measure_markets(repeats: int) -> None:
    print("Plan of a round in each market; numpy: one sort of the privacy values")
    rng = np.random.default_rng(4)
    for clients in (1_000, 100_000):
        values = rng.uniform(0.95, 1.05, clients)
        participants = [Participant(privacy_value=float(value), size=3000) for value in values]
        limit = best_seconds(partial(np.sort, values), repeats)
        for market in MarketKind:
            rules = replace(preset("mnist").round_rules(), market=market, value_min=0.95, value_max=1.05, rho_min=1e-12)
            plan = partial(plan_round, rules=rules, round_number=1, participants=participants, reward_left_micro=10**15)
            assert plan().status is PlanStatus.PLANNED
            seconds = best_seconds(plan, repeats)
            label = f"{market}, {clients:,} clients"
            print(f"  {label:40s} {seconds * 1e3:9.2f} ms  {seconds / limit:5.1f} x numpy")


def measure_plans_with_caps(repeats: int) -> None:
    print("Plan of a round with caps and a largest share; numpy: one sort of the privacy values")
    rng = np.random.default_rng(3)
    rules = preset("mnist").round_rules()
    for clients in (10, 1_000, 10_000):
        values, caps = rng.uniform(0.95, 1.05, clients), rng.uniform(0, rules.rho_max, clients)
        participants = [
            Participant(privacy_value=float(value), size=3000, rho_cap=float(cap))
            for value, cap in zip(values, caps, strict=True)
        ]
        plan = partial(plan_round, rules=rules, round_number=1, participants=participants, reward_left_micro=10**12)
        seconds, limit = best_seconds(plan, repeats), best_seconds(partial(np.sort, values), repeats)
        print(f"  {f'{clients:,} clients':40s} {seconds * 1e3:9.2f} ms  {seconds / limit:5.1f} x numpy")


def measure_aggregation(repeats: int) -> None:
    print("Streaming weighted mean; numpy: the plain float64 sum of the same float32 vectors")
    rng = np.random.default_rng(2)
    for dimension, count in ((7_850, 1_000), (1_663_370, 20)):
        vectors = [rng.standard_normal(dimension, dtype=np.float32) for _ in range(20)]
        seconds = best_seconds(partial(weighted, vectors, count), repeats)
        limit = best_seconds(partial(plain_sum, vectors, count), repeats)
        speed = count * dimension * 4 / seconds / 1e9
        label = f"{count:,} updates of {dimension:,} parameters"
        print(f"  {label:40s} {seconds * 1e3:9.2f} ms  {seconds / limit:5.1f} x numpy  {speed:5.2f} GB/s")


def measure_noise(repeats: int) -> None:
    print("Exact discrete noise; continuous: the quantile function of uniform numbers from as many random bytes")
    for count in (650, 7_850, 1_663_370):
        seconds = best_seconds(partial(discrete_gaussian, count, bits=system_bits), repeats)
        limit = best_seconds(partial(continuous_noise, count), repeats)
        label = f"{count:,} values"
        print(f"  {label:40s} {seconds * 1e3:9.2f} ms  {seconds / limit:5.2f} x continuous")


def system_bits(_: str, length: int) -> bytes:
    return os.urandom(length)


def continuous_noise(count: int) -> Vector:
    """Normal values in floating point, which are not exactly private."""
    values = np.empty(count)
    for start in range(0, count, PIECE):
        part = values[start : start + PIECE]
        words = np.frombuffer(os.urandom(8 * part.size), dtype="<u8")
        tails = ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54)
        part[:] = np.where(words & np.uint64(1), tails, -tails)
    return values


def sort_and_sum(values: Vector) -> Vector:
    result: Vector = np.cumsum(np.sort(values))
    return result


def weighted(vectors: list[Parameters], count: int) -> Vector:
    return weighted_mean(updates=cycle(vectors, count), dimension=vectors[0].size)


def plain_sum(vectors: list[Parameters], count: int) -> Vector:
    total = np.zeros(vectors[0].size)
    for _, vector in cycle(vectors, count):
        total += vector
    return total


def cycle(vectors: list[Parameters], count: int) -> Iterator[tuple[float, Parameters]]:
    return ((1.0 + index, vectors[index % len(vectors)]) for index in range(count))


if __name__ == "__main__":
    main()
