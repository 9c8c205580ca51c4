"""Compares a few costs with the figures stored in the repository, in under two minutes, and says what got slower.

    python benchmarks/quick.py           # compare with benchmarks/figures.json
    python benchmarks/quick.py --save    # replace the stored figures; on an idle machine

Each figure is a ratio to a floor in the same repeat: the coordinator to the bare server of `floor.py`, the core to
numpy on the same data. `figures.py` says when a figure counts as slower.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import figures
from coordinator import Size, measure_coordinator, measure_floor
from qidpfl_shared.core.aggregation import weighted_mean
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.core.planning import plan_round
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import preset

STORED = Path(__file__).with_name("figures.json")
SIZES = {Size(10, 7_850): 10, Size(2, 1_663_370): 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each measurement")
    parser.add_argument("--figures", type=Path, default=STORED, help="the file with the stored figures")
    parser.add_argument("--save", action="store_true", help="store what was measured instead of comparing")
    parser.add_argument("--strict", action="store_true", help="fail if something got slower")
    options = parser.parse_args()
    measured = measure(options.repeats)
    stored = figures.load(options.figures)
    print("ratios to the floor: median (fastest–slowest repeat)")
    print("\n".join(figures.report(stored, measured)))
    if options.save:
        figures.save(options.figures, measured)
        return
    slower = figures.slower(stored, measured)
    print(f"slower than stored: {', '.join(slower)}" if slower else "nothing got slower")
    sys.exit(1 if slower and options.strict else 0)


def measure(repeats: int) -> dict[str, list[float]]:
    """All figures, one value for each repeat."""
    pairs = core_pairs()
    measured: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for size, rounds in SIZES.items():
            here, floor = measure_coordinator(size, rounds), measure_floor(size, rounds)
            measured[f"{size}, seconds"].append(here.seconds / floor.seconds)
            measured[f"{size}, processor time"].append(here.processor_ms / floor.processor_ms)
            measured[f"{size}, memory"].append(here.peak_mib / floor.peak_mib)
        for name, (ours, plain) in pairs.items():
            measured[name].append(fastest(ours) / fastest(plain))
    return dict(measured)


def core_pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Parts of the core, and what numpy does with the same data; the plan has the sort of 10,000 values beside it."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0.95, 1.05, 10_000)
    solve = partial(equilibrium, reward=10, privacy_values=values, privacy_weight=1)
    # As many as a planner that is not linear can still plan often.
    participants = [Participant(privacy_value=float(value), size=3000) for value in values[:1000]]
    rules = preset("mnist").round_rules()
    vectors = [rng.standard_normal(1_663_370, dtype=np.float32) for _ in range(4)]
    return {
        "equilibrium of 10,000 with caps": (
            partial(solve, caps=solve().total * rng.uniform(0, 0.001, values.size)),
            partial(_sort_and_sum, values),
        ),
        "plan of a round for 1,000": (
            partial(plan_round, rules=rules, round_number=1, participants=participants, reward_left_micro=10**12),
            partial(_sort_and_sum, values),
        ),
        "weighted mean of 4 × 1,663,370": (
            lambda: weighted_mean(updates=_weighted(vectors), dimension=vectors[0].size),
            partial(_plain_sum, vectors),
        ),
    }


def fastest(function: Callable[[], object], runs: int = 5) -> float:
    """The processor time of the fastest of several runs: the others contain work of other programs."""
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _sort_and_sum(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> object:
    return np.cumsum(np.sort(values))


def _weighted(
    vectors: "list[np.ndarray[tuple[int], np.dtype[np.float32]]]",
) -> "Iterator[tuple[float, np.ndarray[tuple[int], np.dtype[np.float32]]]]":
    return ((1.0 + index, vector) for index, vector in enumerate(vectors))


def _plain_sum(vectors: "list[np.ndarray[tuple[int], np.dtype[np.float32]]]") -> object:
    total = np.zeros(vectors[0].size)
    for vector in vectors:
        total += vector
    return total


if __name__ == "__main__":
    main()
