"""Privacy auditing with one training run (Steinke, Nasr & Jagielski 2023), on a whole task of digits.

One client has m canaries besides its own records. Each canary is one of two records, chosen by a fair coin. The
adversary sees every release of every round, knows everything but the coins, and guesses the coins it is most sure of.
(ε, δ)-DP limits how many guesses can be right, so the number of right guesses is a lower bound on ε. One run replaces
thousands, but the bound is loose: r right guesses of r prove little more than ln(r / 3).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import optimize, stats

from qidpfl_client.noise import NoiseSource
from qidpfl_client.participant.local_data import LocalData, RecordsLearner
from qidpfl_client.training.data_loader import DataLoader
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.core.aggregation import ServerState, server_step, weighted_mean
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.privacy.account import PrivacyAccount, Release
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import Vector32
from qidpfl_shared.workloads.records import Records

CANARIES = 64
GUESSES = 32
CONFIDENCE = 0.95
# The brightest value of a pixel: the gradient of a canary is long, so that clipping keeps all it may keep.
_BRIGHT = 255
_PIXELS = 64


@dataclass(frozen=True, kw_only=True)
class CanaryRun:
    """The outcome of one run: what the ledger says, and what the guesses prove."""

    rounds: int
    right: int
    ledger_epsilon: float
    proven_epsilon: float

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.right} of {GUESSES} guesses right: epsilon at least"
            f" {self.proven_epsilon:.2f}, by the ledger at most {self.ledger_epsilon:.2f}"
        )


def canary_run(*, source: NoiseSource, seed: int, rho: float | None = 0.1, delta: float = 1e-5) -> CanaryRun:
    """Play all rounds of the digits task with every client, each with `rho` per round; None switches noise off."""
    spec = preset("digits")
    privacy = spec.privacy.model_copy(update={"noise": rho is not None})
    data = LocalData(device=torch.device("cpu"))(spec)
    learners = [data.learner(ordinal) for ordinal in range(10)]
    canaries = [_canary(number) for number in range(CANARIES)]
    coins = np.random.default_rng(seed).integers(0, 2, CANARIES)
    chosen = [pair[coin] for pair, coin in zip(canaries, coins, strict=True)]
    adversary = _Adversary(spec, learners[0], canaries)
    learners[0] = replace(learners[0], records=_joined([learners[0].records, *chosen]))
    state = ServerState.start(np.zeros(spec.dimension, dtype=np.float32))
    account = PrivacyAccount()
    for number in range(spec.game.horizon):
        name = f"round {number}"
        uploads = [
            learner.release(
                privacy=privacy, model=state.parameters, rho=rho, noise=source, name=f"{name}/client {ordinal}"
            )
            for ordinal, learner in enumerate(learners)
        ]
        adversary.look(_on_the_wire(uploads)[0], state.parameters)
        if rho is not None:
            account = account.charge(Release(name=name, mechanism="gradient_once", rho=rho, proven_rho=rho))
        weighted = ((float(learner.size), sent) for learner, sent in zip(learners, _on_the_wire(uploads), strict=True))
        mean = weighted_mean(updates=weighted, dimension=spec.dimension)
        state = server_step(
            state=state,
            mean_update=mean,
            learning_rate=spec.aggregation.learning_rate,
            momentum=spec.aggregation.momentum,
        )
    right = adversary.right_guesses(coins.astype(bool))
    return CanaryRun(
        rounds=spec.game.horizon,
        right=right,
        ledger_epsilon=np.inf if rho is None else account.epsilon(delta=delta),
        proven_epsilon=proven_epsilon(right, delta=delta),
    )


class _Adversary:
    """Knows all records but the coins, and adds up what each release says about each coin."""

    def __init__(self, spec: TaskSpec, own: RecordsLearner, canaries: list[tuple[Records, Records]]) -> None:
        self._privacy = spec.privacy.model_copy(update={"noise": False})
        self._own = _trainer(own, own.records)
        self._canaries = [[_trainer(own, record) for record in pair] for pair in canaries]
        self._scores = np.zeros(len(canaries))

    def look(self, upload: Vector32, model: Vector32) -> None:
        """Compare a release with what each canary contributes to it. All rounds have the same noise, hence weight."""
        pairs = [[self._sum(trainer, model) for trainer in pair] for pair in self._canaries]
        size = self._own.size + len(pairs)
        middle = sum((heads + tails) / 2 for tails, heads in pairs)
        rest = size * upload - self._sum(self._own, model) - middle
        self._scores += [float(rest @ (heads - tails)) for tails, heads in pairs]

    def right_guesses(self, coins: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        """How many of the surest guesses are right."""
        surest = np.argsort(-np.abs(self._scores))[:GUESSES]
        return int((coins[surest] == (self._scores[surest] > 0)).sum())

    def _sum(self, trainer: Trainer, model: Vector32) -> Vector:
        """The sum of the clipped gradients of a trainer's records."""
        mean = trainer.release(privacy=self._privacy, model=model, rho=None, noise=_NoNoise(), name="")
        return trainer.size * mean


def _trainer(own: RecordsLearner, records: Records) -> Trainer:
    return Trainer.with_checked(own.shared.new_network(), DataLoader(records, own.device))


class _NoNoise:
    def standard_normal(self, count: int, *, release: str) -> Vector:
        raise AssertionError("the adversary computes without noise")


def proven_epsilon(right: int, *, delta: float, guesses: int = GUESSES, canaries: int = CANARIES) -> float:
    """The largest epsilon that so many right guesses rule out, with probability `CONFIDENCE` (Theorem 5.2)."""

    def excess(epsilon: float) -> float:
        return p_value(right, epsilon, delta=delta, guesses=guesses, canaries=canaries) - (1 - CONFIDENCE)

    return float(optimize.brentq(excess, 0.0, 50.0)) if excess(0.0) < 0 else 0.0


def p_value(right: int, epsilon: float, *, delta: float, guesses: int, canaries: int) -> float:
    """A bound on the probability of at least so many right guesses, for any (epsilon, delta)-DP mechanism."""
    share = 1 / (1 + np.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, share))
    below = np.cumsum(stats.binom.pmf(right - np.arange(1, right + 1), guesses, share))
    worst = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, tail + 2 * canaries * delta * worst)


def _canary(number: int) -> tuple[Records, Records]:
    """One bright pixel, with one of two labels. Gradients of different pixels are orthogonal, but for the bias."""
    pixels = np.zeros((1, _PIXELS), dtype=np.uint8)
    pixels[0, number] = _BRIGHT
    first, second = (Records(features=pixels, labels=np.array([label]), scale=1 / 16) for label in (0, 1))
    return first, second


def _joined(parts: list[Records]) -> Records:
    return replace(
        parts[0],
        features=np.concatenate([part.features for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


def _on_the_wire(uploads: list[Vector]) -> list[Vector32]:
    """The uploads in the precision in which the server gets them."""
    return [upload.astype(np.float32) for upload in uploads]
