"""The clients of a planner's question: those of an ended task, or a number of equal ones with different values."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.planner.answers import PlanningCase
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import CoordinatorError
from .calibrations import exported_table

# Bounds of the privacy value that are wider say nothing of the clients that will come.
_WIDEST_VALUES = 1.5


def scenario(spec: TaskSpec, participants: list[Participant], rounds: int | None) -> PlanningCase:
    """The question of a task and its clients. Raises `CoordinatorError` if the planner cannot answer any."""
    if not spec.privacy.noise:
        raise CoordinatorError("a task without noise has no price: its clients sell no privacy budget")
    try:
        return PlanningCase(
            rules=spec.round_rules(),
            participants=participants,
            rounds=spec.game.horizon if rounds is None else rounds,
            delta=spec.privacy.delta,
            histogram_rho=spec.privacy.histogram_rho or 0.0,
        )
    except ImpossibleArgument as error:
        raise CoordinatorError(str(error)) from error


def assumed_clients(
    spec: TaskSpec, *, clients: int | None, records: int | None, privacy_values: tuple[float, float] | None
) -> list[Participant]:
    """Clients of equal size whose privacy values are spread evenly.

    Raises `CoordinatorError` if too little is known.
    """
    partition, facts = spec.workload.partition, layouts.DATA_SETS.get(spec.workload.dataset)
    count = clients or spec.rounds.expected_clients or (None if partition is None else partition.clients)
    if count is None:
        raise CoordinatorError("the task does not say how many clients it expects: give --clients")
    total = spec.workload.training_records or (None if facts is None else facts.records)
    if records is None and total is None:
        raise CoordinatorError("the size of own data is not known: give --records, the records of one client")
    low, high = privacy_values or (spec.bounds.privacy_value_min, spec.bounds.privacy_value_max)
    if privacy_values is None and high > low * _WIDEST_VALUES:
        raise CoordinatorError(
            f"the task accepts privacy values from {low:g} to {high:g}, which says little of its clients:"
            " give --privacy-values LOW:HIGH"
        )
    size = records or max(1, (total or count) // count)
    # The middles of equal parts: the mean and the spread are those of a uniform distribution.
    values = [low + (high - low) * (place + 0.5) / count for place in range(count)]
    return [_participant(spec, value, size) for value in values]


def exported_clients(spec: TaskSpec, folder: Path) -> list[Participant]:
    """The clients that an exported task had selected. Raises `CoordinatorError`.

    An export does not have the label counts, so optimal weights count all clients as alike.
    """
    rows = exported_table(folder, "clients")
    # In a menu no client has reported its value: it counts as the largest one.
    unknown = None if spec.design.reports_values else spec.bounds.privacy_value_max
    try:
        values = [(row, row.get("privacy_value", unknown) or unknown) for row in rows if row.get("state") == "selected"]
        known = [_participant(spec, float(value), int(row["size"]), row) for row, value in values if value is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise CoordinatorError(f"the clients of {folder} have impossible numbers") from error
    if not known:
        raise CoordinatorError(f"{folder} has no selected client")
    return known


def parsed_range(text: str, option: str) -> tuple[float, float]:
    """LOW:HIGH as two numbers. Raises `CoordinatorError`."""
    low, _, high = text.partition(":")
    try:
        found = float(low), float(high or low)
    except ValueError:
        found = math.nan, math.nan
    if not np.isfinite(found).all() or not 0 < found[0] <= found[1]:
        raise CoordinatorError(f"{option}: {text} is not LOW:HIGH, two numbers above 0")
    return found


def _participant(spec: TaskSpec, value: float, size: int, row: dict[str, Any] | None = None) -> Participant:
    stored = row or {}
    limits = [spec.privacy.lifetime_rho, stored.get("lifetime_rho")]
    lifetime = min((float(limit) for limit in limits if limit is not None), default=math.inf)
    cap = stored.get("rho_cap")
    return Participant(
        privacy_value=value,
        size=size,
        rho_cap=math.inf if cap is None else float(cap),
        remaining_rho=max(0.0, lifetime - (spec.privacy.histogram_rho or 0.0)),
    )
