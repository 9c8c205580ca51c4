"""Synthetic results: tables whose truth is known, the same every time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qidpfl_experiments.methods import BY_NAME, Kept
from qidpfl_experiments.results.tables import CalibrationRow, CellRow, ClientRow, FitRow, Guarantee, RoundRow, Tables

DATASET = "mnist"
ROUNDS = 12
CLIENTS = 10
DISCOUNT = 0.95
# Accuracy that a method reaches in the end, and what it pays in the first round.
ACCURACY = {
    "fedavg": 0.90,
    "fedavg-select": 0.892,
    "fedavg-dp": 0.862,
    "qi-dpfl": 0.855,
    "max": 0.874,
    "max-select": 0.868,
    "random": 0.866,
    "random-select": 0.860,
    "blind": 0.885,
    "blind-dp": 0.848,
    "fedavg-dp-optimal": 0.861,
    "qi-dpfl-union": 0.863,
}
REWARD = {"max": 60.0, "max-select": 60.0, "random": 38.0, "random-select": 38.0, "fedavg-dp-optimal": 16.0}
COST = {"qi-dpfl": 80.0, "max": 118.0, "max-select": 120.0, "random": 95.0, "random-select": 97.0, "fedavg-dp": 78.0}


def cell(
    method: str,
    seed: int,
    *,
    partition: str = "dirichlet",
    accuracy: float | None = None,
    reward: float = 0.0,
    cost: float | None = None,
    selected: int = 6,
    state: str = "finished",
    digest: str = "",
) -> CellRow:
    """One cell with default values for all that a test does not name."""
    return CellRow(
        dataset=DATASET,
        partition=partition,
        method=method,
        seed=seed,
        scale="full",
        state=state,
        reason="" if state == "finished" else "too_few_clients: no client came",
        clients=CLIENTS,
        selected=selected,
        rounds=ROUNDS,
        accuracy=accuracy,
        mean_accuracy=None if accuracy is None else accuracy - 0.1,
        loss=None,
        reward=reward,
        paid=reward,
        cost=cost,
        spent_rho=0.1 if reward else None,
        epsilon=2.0 if reward else None,
        guarantee=Guarantee.PROVEN if reward else Guarantee.NONE,
        model_digest=digest or f"{method}-{partition}-{seed}",
        wall_s=12.5,
    )


def cells(effects: Mapping[str, Sequence[float]], *, partition: str = "dirichlet") -> tuple[CellRow, ...]:
    """Cells with these accuracies, in percent, seed by seed."""
    return tuple(
        cell(method, seed, partition=partition, accuracy=value / 100)
        for method, values in effects.items()
        for seed, value in enumerate(values)
    )


def rounds_of(row: CellRow, first_reward: float, noise: np.random.Generator) -> tuple[RoundRow, ...]:
    """The rounds of a cell: accuracy that rises to its end, rewards that grow by discounting alone."""
    assert row.accuracy is not None
    grows = not row.method.startswith(("max", "random"))
    found = []
    for number in range(1, ROUNDS + 1):
        reward = first_reward * (DISCOUNT ** ((1 - number) / 2) if grows else 1.0)
        if row.method.startswith("random"):
            reward *= float(noise.uniform(0.5, 1.5))
        risen = 1 - math.exp(-0.4 * number)
        found.append(
            RoundRow(
                dataset=row.dataset,
                partition=row.partition,
                method=row.method,
                seed=row.seed,
                round_number=number,
                accuracy=row.accuracy if number == ROUNDS else row.accuracy * risen,
                loss=1 - row.accuracy * risen,
                reward=reward,
                paid=reward,
                cost=None if row.cost is None else row.cost / ROUNDS * (1.2 - 0.4 * number / ROUNDS),
                total=reward / 1000,
                declared_total=reward / 1000,
                updates=row.selected,
                wall_s=1.0,
                training_s=0.55,
                http_s=0.3,
                settlement_s=0.05,
                evaluation_s=0.1,
            )
        )
    return tuple(found)


def clients_of(row: CellRow, noise: np.random.Generator) -> tuple[ClientRow, ...]:
    """The clients of a cell; the rule keeps those with the smallest distances, a blind one just some."""
    kind = BY_NAME[row.method].kept if row.method in BY_NAME else Kept.CUSTOM
    spread = 0.05 if row.partition == "iid" else 0.9
    distances = noise.uniform(0.02, spread, CLIENTS)
    order = noise.permutation(CLIENTS) if kind is Kept.BLIND else np.argsort(distances)
    kept = set(order[: row.selected].tolist())
    values = noise.uniform(0.95, 1.05, CLIENTS)
    return tuple(
        _client(row, ordinal, float(values[ordinal]), float(distances[ordinal]), ordinal in kept)
        for ordinal in range(CLIENTS)
    )


def _client(row: CellRow, ordinal: int, value: float, distance: float, kept: bool) -> ClientRow:
    share = max(0.0, 1.04 - value) if kept and row.reward else 0.0
    return ClientRow(
        dataset=row.dataset,
        partition=row.partition,
        method=row.method,
        seed=row.seed,
        ordinal=ordinal,
        size=600,
        privacy_value=value,
        label_distance=distance,
        selected=kept,
        updates=ROUNDS if kept and (share or not row.reward) else 0,
        mean_rho=share / 10,
        spent_rho=0.01 + share if row.reward else None,
        epsilon=0.5 + 20 * share if row.reward else None,
        earned=share * row.reward,
    )


def calibration_of(partition: str) -> tuple[tuple[CalibrationRow, ...], FitRow]:
    """Runs along a curve, and the curve."""
    rows = tuple(
        CalibrationRow(
            dataset=DATASET,
            partition=partition,
            seed=seed,
            reward=reward,
            selected=6,
            total=reward / 1000,
            accuracy=0.88 - 0.12 * math.exp(-60 * reward / 1000) + 0.001 * (-1) ** seed,
        )
        for reward in (5.0, 10.0, 20.0, 40.0, 80.0)
        for seed in range(2)
    )
    fit = FitRow(
        dataset=DATASET,
        partition=partition,
        status="fitted",
        ceiling=0.88,
        drop=0.12,
        rate=60.0,
        total_min=0.005,
        total_max=0.08,
        rmse=0.001,
        target=0.84,
        target_max=0.875,
        range_status="feasible",
        reward_min=18.3,
        reward_max=53.0,
    )
    return rows, fit


def results(
    *,
    methods: Iterable[str] = tuple(BY_NAME),
    partitions: Sequence[str] = ("iid", "dirichlet"),
    seeds: int = 5,
) -> Tables:
    """Complete tables for these methods."""
    names = tuple(methods)
    found = Tables()
    for partition in partitions:
        calibration, fit = calibration_of(partition)
        found = replace(found, calibration=(*found.calibration, *calibration), fits=(*found.fits, fit))
        for name in names:
            for seed in range(seeds):
                found = _with_cell(found, name, partition, seed)
    return found


def _with_cell(found: Tables, name: str, partition: str, seed: int) -> Tables:
    noise = np.random.default_rng([seed, sum(map(ord, name + partition))])
    pays = name not in ("fedavg", "fedavg-select", "blind")
    first_reward = REWARD.get(name, 18.0) if pays else 0.0
    keeps_all = name in BY_NAME and BY_NAME[name].kept is Kept.ALL
    row = cell(
        name,
        seed,
        partition=partition,
        accuracy=ACCURACY.get(name, 0.857) + 0.004 * math.sin(seed) + float(noise.normal(0, 0.002)),
        cost=COST.get(name, 90.0) + 0.1 * seed if pays else None,
        selected=CLIENTS if keeps_all else 6,
    )
    rounds = rounds_of(row, first_reward, noise)
    reward = sum(part.reward for part in rounds)
    row = replace(
        row,
        reward=reward,
        paid=reward,
        spent_rho=0.1 if pays else None,
        epsilon=2.0 if pays else None,
        guarantee=Guarantee.PROVEN if pays else Guarantee.NONE,
        mean_accuracy=sum(part.accuracy or 0.0 for part in rounds) / ROUNDS,
    )
    return replace(
        found,
        cells=(*found.cells, row),
        rounds=(*found.rounds, *rounds),
        clients=(*found.clients, *clients_of(row, noise)),
    )
