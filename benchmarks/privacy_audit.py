"""Prints what an empirical audit proves about the privacy of each mechanism, beside what the ledger says.

A row is one mechanism: the epsilon of the ledger, the lower bounds on epsilon from many draws of one release on the
worst pair of neighbours (direct, and for Gaussian noise), and the same with half the noise, where they must exceed the
ledger. Below are canary figures of whole runs on the digits. Noise is fresh; nothing is checked.
"""

import argparse
import secrets
import sys
from pathlib import Path

import torch

from qidpfl_client.noise import SystemNoise
from qidpfl_shared.core.privacy.conversion import rho_from_epsilon

# The audit belongs to the tests, which nothing installs.
sys.path.append(str(Path(__file__).parent.parent / "tests"))

from support.attacks.audit import (
    PROVEN,
    HalvedNoise,
    LowerBounds,
    histogram_statistics,
    lower_bounds,
    release_statistics,
    worst_release,
)
from support.attacks.canaries import CanaryRun, canary_run

DELTA = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0, help="epsilon of the audited release by the ledger")
    parser.add_argument("--draws", type=int, default=1_000_000, help="draws on each of the two data sets")
    parser.add_argument("--histograms", type=int, default=50_000, help="draws of the histogram, which is slower")
    parser.add_argument("--runs", type=int, default=3, help="runs with canaries")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"lower bounds on epsilon at delta {DELTA:g}, each true with probability 0.999")
    print(f"{'mechanism':14s} {'ledger':>7s} {'direct':>7s} {'Gaussian':>9s}   half the noise: direct  Gaussian")
    for mechanism in PROVEN:
        draws = options.histograms if mechanism == "histogram" else options.draws
        right, halved = (audited(mechanism, options.epsilon, draws, halved=fault) for fault in (False, True))
        print(
            f"{mechanism:14s} {options.epsilon:7.2f} {right.direct:7.2f} {right.gaussian:9.2f}"
            f" {halved.direct:24.2f} {halved.gaussian:9.2f}",
            flush=True,
        )
    print("canaries in whole runs on digits, at a probability of 0.95")
    for _ in range(options.runs):
        print(f"  {canaries(halved=False)}")
        print(f"  {canaries(halved=True)}, with half the noise", flush=True)


def audited(mechanism: str, epsilon: float, draws: int, *, halved: bool) -> LowerBounds:
    rho, source = rho_from_epsilon(epsilon=epsilon, delta=DELTA), SystemNoise()
    if mechanism == "histogram":
        drawn = histogram_statistics(rho=rho, count=draws, source=source, halved=halved)
    else:
        drawn = release_statistics(worst_release(mechanism, rho=rho), count=draws, source=source, halved=halved)
    return lower_bounds(*drawn, delta=DELTA)


def canaries(*, halved: bool) -> CanaryRun:
    source = HalvedNoise(SystemNoise()) if halved else SystemNoise()
    return canary_run(source=source, seed=secrets.randbits(32), delta=DELTA)


if __name__ == "__main__":
    main()
