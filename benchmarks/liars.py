"""Measures what hostile clients achieve: the accuracy under poisoning, and their part of the reward, in one process.

The clients train with the real trainer and seeded noise, the rounds are planned by `plan_round`, and the uploads are
audited, clipped and averaged by the code of the server. There is no network and no store.

Poisoning: attack x defence x preset. The listed attacks push the model in one fixed direction, and claim a small
budget, a large size or nothing; the table shows the accuracy after the last round, as the mean of several seeds.
Attacks called `opposite` know the defence: they claim nothing false and send the largest vector that the audit accepts,
against the gradient of their own records.

Contest: what one round pays to hostile clients, and to an honest one in units of its privacy cost.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.training.trainer import Trainer
from qidpfl_server.service.evaluation import Evaluators
from qidpfl_server.service.rounds.acceptance import is_accepted
from qidpfl_server.service.rounds.aggregation import initial_parameters
from qidpfl_server.service.rounds.submissions import largest_norm
from qidpfl_server.service.rounds.weights import Upload, weighted_uploads
from qidpfl_shared.core.aggregation import AggregationRule, ServerState, server_step, trimmed_mean, weighted_mean
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.core.noise_audit import NoiseAudit, alpha_per_upload
from qidpfl_shared.core.planning import PlanStatus, RoundPlan, Standing, plan_round
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import merged, preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.partitions import all_shards

Array = npt.NDArray[np.float64]

# Ten clients with records of all labels: selection is not what this benchmark measures.
TEN_CLIENTS: dict[str, Any] = {
    "workload": {"partition": {"kind": "iid", "clients": 10, "concentration": None, "two_class_ordinals": []}},
    "selection": {"rule": "all"},
    "rounds": {"expected_clients": 10},
}
# The seed of the fixed direction, the same for all hostile clients: they collude.
DIRECTION = 5
NO_NOISE: dict[str, Any] = {"game": {"policy": "none"}, "privacy": {"noise": False}}
DEFENCES: dict[str, dict[str, Any]] = {
    "none": {"defence": None, "privacy": {"audit": "flag"}},
    "defaults": {},
    "trimmed_mean": {"aggregation": {"rule": "trimmed_mean", "trim": 0.3}},
    "norm_bounded": {"aggregation": {"rule": "norm_bounded"}},
}


@dataclass(frozen=True)
class Claim:
    """What a hostile client says and sends: its size, its budget, and the norm and direction of its upload."""

    size: int
    rho: float
    norm: float
    opposite: bool = False


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a hostile client knows of a round."""

    spec: TaskSpec
    size: int
    planned_rho: float

    def largest_norm(self, *, size: int, rho: float) -> float:
        mechanism = self.spec.privacy.mechanism.build()
        return 0.999 * largest_norm(mechanism, size=size, rho=rho, dimension=self.spec.dimension)

    def consistent_norm(self, *, size: int, rho: float) -> float:
        """The largest norm that the noise audit accepts; without noise, the largest honest one."""
        mechanism = self.spec.privacy.mechanism.build()
        if rho == 0:
            return mechanism.signal_bound(size=size)
        alpha = alpha_per_upload(alpha=self.spec.privacy.audit_alpha, clients=10, rounds=self.spec.game.horizon)
        audit = NoiseAudit.of_upload(
            mechanism=mechanism, rho=rho, size=size, dimension=self.spec.dimension, alpha=alpha
        )
        return 0.999 * math.sqrt(audit.upper)


def smallest_budget_huge_norm(known: Situation) -> Claim:
    rho = known.spec.bounds.rho_min
    return Claim(known.size, rho, known.largest_norm(size=known.size, rho=rho))


def smallest_budget(known: Situation) -> Claim:
    rho = known.spec.bounds.rho_min
    return Claim(known.size, rho, known.consistent_norm(size=known.size, rho=rho))


def size_times_18(known: Situation) -> Claim:
    size = 18 * known.size
    return Claim(size, known.planned_rho, known.consistent_norm(size=size, rho=known.planned_rho))


def largest_size(known: Situation) -> Claim:
    size = known.spec.bounds.size_max
    return Claim(size, known.planned_rho, known.consistent_norm(size=size, rho=known.planned_rho))


def right_norm(known: Situation) -> Claim:
    return Claim(known.size, known.planned_rho, known.consistent_norm(size=known.size, rho=known.planned_rho))


def opposite(known: Situation) -> Claim:
    return replace(right_norm(known), opposite=True)


def ten_times_the_signal(known: Situation) -> Claim:
    return Claim(known.size, 0.0, known.largest_norm(size=known.size, rho=0.0))


Attack = Callable[[Situation], Claim]
ATTACKS: dict[str, tuple[Attack | None, dict[str, Any]]] = {
    "honest": (None, {}),
    "smallest budget, huge norm": (smallest_budget_huge_norm, {}),
    "smallest budget": (smallest_budget, {}),
    "size x 18": (size_times_18, {}),
    "largest size": (largest_size, {}),
    "right norm": (right_norm, {}),
    "right norm, opposite": (opposite, {}),
    "no noise, honest": (None, NO_NOISE),
    "no noise, 10 x the signal": (ten_times_the_signal, NO_NOISE),
    "no noise, right norm": (right_norm, NO_NOISE),
    "no noise, right norm, opposite": (opposite, NO_NOISE),
}


class Testbed:
    """The data of a preset, divided among ten clients, and an evaluator."""

    def __init__(self, name: str, data_dir: Path | None) -> None:
        self.name = name
        spec = preset(name, TEN_CLIENTS)
        self._workload = load_workload(spec.workload, data_dir=data_dir)
        assert spec.workload.partition is not None
        records = self._workload.training()
        self._shards = [
            records.take(shard) for shard in all_shards(labels=records.labels, partition=spec.workload.partition)
        ]
        self._evaluator = Evaluators(data_dir=data_dir).of(spec)
        self._clipping: Any = None

    def trainers(self, spec: TaskSpec) -> list[Trainer]:
        """A trainer for each client. The check of the network is made once."""
        found = []
        for shard in self._shards:
            trainer = Trainer(
                network=self._workload.network(),
                records=shard,
                layout=spec.layout,
                device=torch.device("cpu"),
                clipping=self._clipping,
            )
            self._clipping = trainer.clipping
            found.append(trainer)
        return found

    def accuracy(self, spec: TaskSpec, state: ServerState) -> float:
        evaluation = self._evaluator.evaluate(spec, state.parameters)
        assert evaluation is not None
        return evaluation.reported.accuracy


def run(testbed: Testbed, spec: TaskSpec, attack: Attack | None, liars: int, seed: int) -> float:
    """The accuracy after all rounds; `nan` if the task cannot go on."""
    clients = testbed.trainers(spec)
    values = np.random.default_rng(seed).uniform(0.95, 1.05, len(clients)).tolist()
    hostile = set(range(liars)) if attack is not None else set()
    state = ServerState.start(initial_parameters(spec))
    for round_number in range(1, spec.game.horizon + 1):
        claimed = [
            attack(Situation(spec=spec, size=trainer.size, planned_rho=spec.bounds.rho_max)).size
            if attack is not None and index in hostile
            else trainer.size
            for index, trainer in enumerate(clients)
        ]
        plan = plan_round(
            rules=spec.round_rules(),
            round_number=round_number,
            participants=[
                Participant(privacy_value=value, size=size) for value, size in zip(values, claimed, strict=True)
            ],
            reward_left_micro=spec.bounds.reward_total_micro,
        )
        if plan.status is not PlanStatus.PLANNED:
            return math.nan
        sent = []
        for index, trainer in enumerate(clients):
            if plan.standings[index] is Standing.INVITED:
                model = state.parameters
                release = f"{seed}/{index}/{round_number}"
                rho = _best(spec, plan, values[index], plan.limits[index])
                if attack is not None and index in hostile:
                    known = Situation(spec=spec, size=trainer.size, planned_rho=rho)
                    sent.append(_hostile(spec, trainer, model, attack(known), plan.budgets[index], release))
                else:
                    sent.append(_honest(spec, trainer, model, rho, plan.budgets[index], release, seed))
        accepted = [(upload, vector) for upload, vector in sent if _passes(spec, upload, len(clients))]
        if len(accepted) < plan.min_updates:
            return math.nan
        state = _step(spec, state, accepted, len(clients))
    return testbed.accuracy(spec, state)


def _best(spec: TaskSpec, plan: RoundPlan, value: float, limit: float) -> float:
    if not spec.privacy.noise:
        return 0.0
    return best_response(
        reward=plan.reward_micro / MICRO,
        total=plan.total,
        privacy_value=value,
        privacy_weight=spec.game.privacy_weight,
        cap=limit,
    )


def _honest(
    spec: TaskSpec, trainer: Trainer, model: Any, rho: float, planned: float, release: str, seed: int
) -> tuple[Upload, Array]:
    noise = UnsafeSeededNoise(seed)
    vector = trainer.release(privacy=spec.privacy, model=model, rho=rho or None, noise=noise, name=release)
    return _upload(vector, size=trainer.size, rho=rho, planned=planned)


def _hostile(
    spec: TaskSpec, trainer: Trainer, model: Any, claim: Claim, planned: float, release: str
) -> tuple[Upload, Array]:
    """A vector with the norm of the attack: against the client's own clean update, or in a fixed direction."""
    if claim.opposite:
        clean = spec.privacy.model_copy(update={"noise": False})
        vector = -trainer.release(privacy=clean, model=model, rho=None, noise=UnsafeSeededNoise(0), name=release)
    else:
        vector = np.random.default_rng(DIRECTION).standard_normal(spec.dimension)
    vector *= claim.norm / max(float(np.linalg.norm(vector)), 1e-30)
    return _upload(vector, size=claim.size, rho=claim.rho, planned=planned)


def _upload(vector: Array, *, size: int, rho: float, planned: float) -> tuple[Upload, Array]:
    numbers = Upload(
        digest="", size=size, declared_rho=rho, planned_rho=planned, squared_norm=float(vector.dot(vector))
    )
    return numbers, vector


def _passes(spec: TaskSpec, upload: Upload, clients: int) -> bool:
    if not spec.privacy.noise:
        return True
    audit = NoiseAudit.of_upload(
        mechanism=spec.privacy.mechanism.build(),
        rho=upload.declared_rho,
        size=upload.size,
        dimension=spec.dimension,
        alpha=alpha_per_upload(alpha=spec.privacy.audit_alpha, clients=clients, rounds=spec.game.horizon),
    )
    return is_accepted(spec, audit.verdict(squared_norm=upload.squared_norm))


def _step(spec: TaskSpec, state: ServerState, accepted: Sequence[tuple[Upload, Array]], clients: int) -> ServerState:
    parts = weighted_uploads(spec, [upload for upload, _ in accepted], participants=clients)
    vectors: list[Any] = [vector * part.scale for part, (_, vector) in zip(parts, accepted, strict=True)]
    weights = [part.weight for part in parts]
    if spec.aggregation.rule is AggregationRule.TRIMMED_MEAN:
        change = trimmed_mean(
            read=lambda index, part: vectors[index][part].astype(np.float32),
            weights=weights,
            dimension=spec.dimension,
            trim=spec.aggregation.trim or 0.0,
        )
    else:
        change = weighted_mean(updates=zip(weights, vectors, strict=True), dimension=spec.dimension)
    return server_step(
        state=state,
        mean_update=change,
        learning_rate=spec.aggregation.learning_rate,
        momentum=spec.aggregation.momentum,
    )


WIDE_BOUNDS: dict[str, Any] = {"bounds": {"privacy_value_min": 0.01, "privacy_value_max": 100.0}}


def contest() -> None:
    """Print what hostile bidders get of one round, without and with a defence. Both take any privacy value here."""
    print(
        "| attack | reward to the hostile, no defence | defaults | pay / cost of an honest one, no defence | defaults |"
    )
    print("|---|---|---|---|---|")
    for name, values, greedy, withdrawn in (
        ("all honest", [1.0] * 10, 0, False),
        ("one privacy value of 0.01", [0.01, *[1.0] * 9], 0, False),
        ("two privacy values of 0.01", [0.01, 0.01, *[1.0] * 8], 0, False),
        ("one bid of the largest budget", [1.0] * 10, 1, False),
        ("the same bid, taken back", [1.0] * 10, 1, True),
        ("seven clients of one owner, privacy value 0.9", [0.9] * 7 + [1.0] * 3, 0, False),
    ):
        liars = max(greedy, sum(value < 1 for value in values))
        found = [_outcome(values, liars, greedy, defence, withdrawn=withdrawn) for defence in ({"defence": None}, {})]
        cells = [f"{taken:.0%}" for taken, _ in found] + [f"{margin:.2f}" for _, margin in found]
        print(f"| {name} | {' | '.join(cells)} |")
    print()


def _outcome(
    values: list[float], liars: int, greedy: int, defence: dict[str, Any], *, withdrawn: bool
) -> tuple[float, float]:
    """The part of the reward that the first clients get, and what the last one is paid for a unit of its cost."""
    spec = preset("digits", merged(merged(TEN_CLIENTS, WIDE_BOUNDS), defence))
    plan = plan_round(
        rules=spec.round_rules(),
        round_number=1,
        participants=[Participant(privacy_value=value, size=110) for value in values],
        reward_left_micro=spec.bounds.reward_total_micro,
    )
    bids = [plan.limits[index] if index < greedy else budget for index, budget in enumerate(plan.budgets)]
    # A budget that is not delivered counts at most as planned, if the task has a defence.
    counted = [
        min(bid, planned) if withdrawn and index < greedy and spec.defence is not None else bid
        for index, (bid, planned) in enumerate(zip(bids, plan.budgets, strict=True))
    ]
    paid = [bid / sum(counted) * plan.reward_micro / MICRO for bid in counted]
    cost = spec.game.privacy_weight * values[-1] * bids[-1]
    taken = 0.0 if withdrawn else sum(paid[:liars]) / sum(paid)
    return taken, paid[-1] / cost if cost else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["digits"], help="mnist and others need --data-dir")
    parser.add_argument("--data-dir", type=Path, help="where the data sets are")
    parser.add_argument("--liars", type=int, nargs="+", default=[1, 3], help="hostile clients of ten")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES), choices=list(DEFENCES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    contest()
    poisoning(options.presets, options.data_dir, options)


def poisoning(presets: Sequence[str], data_dir: Path | None, options: argparse.Namespace) -> None:
    """Print the accuracy of each preset under each attack and defence."""
    print("| preset | hostile | attack | " + " | ".join(options.defences) + " |")
    print("|---|---|---|" + "---|" * len(options.defences))
    for name in presets:
        testbed = Testbed(name, data_dir)
        for attack in options.attacks:
            chosen, overrides = ATTACKS[attack]
            for liars in options.liars if chosen is not None else [0]:
                cells = []
                for defence in options.defences:
                    spec = preset(name, merged(merged(TEN_CLIENTS, overrides), DEFENCES[defence]))
                    found = [run(testbed, spec, chosen, liars, seed) for seed in range(options.seeds)]
                    cells.append("task fails" if any(map(math.isnan, found)) else f"{mean(found):.3f}")
                print(f"| {name} | {liars} of 10 | {attack} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
