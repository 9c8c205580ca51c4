"""The data of the page of results: what the report of a folder says, as JSON for charts and tables."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..analysis.claims import Claim
from ..analysis.conditions import (
    Condition,
    compared,
    conditions,
    failures,
    finished,
    for_condition,
    method_named,
    methods_in,
)
from ..analysis.evaluate import Outcome, outcomes
from ..analysis.statistics import Estimate, per_round
from ..analysis.summary import PARTS, SummaryRow, summary, times
from ..analysis.verdicts import Verdict
from ..methods import Method
from ..report import formatting
from ..report.about import about, flat
from ..report.caveats import remarks_on
from ..results.folder import CONFIG, NotOurFolder, gathered, read_config
from ..results.tables import Tables

Values = dict[str, Any]


def page_content(folder: Path) -> Values:
    """Everything that the page shows of a results folder.

    Raises `NotOurFolder` if it holds no results, and `DamagedResults` if a file cannot be read.
    """
    if not folder.is_dir():
        raise NotOurFolder(f"{folder} is not a folder; give the folder that `run --out` has written")
    if not (folder / CONFIG).is_file():
        raise NotOurFolder(f"{folder} holds no results ({CONFIG} is missing); give the folder of `run --out`")
    described = about(read_config(folder))
    tables = gathered(folder)
    if tables == Tables():
        raise NotOurFolder(f"{folder} has no finished cells yet; run some first")
    ended, found = finished(tables), outcomes(tables)
    return {
        "title": described.title,
        "folder": folder.resolve().name,
        "scale_note": described.scale_note,
        "command": described.command,
        "settings": _pairs(flat(described.settings)),
        "versions": _pairs(described.versions),
        "remarks": remarks_on(tables, is_full=not described.scale_note, reproducible=described.reproducible),
        "failures": [asdict(failure) for failure in failures(tables)],
        "methods": [_method(method) for method in methods_in(compared(tables).cells)],
        "verdicts": {verdict: sum(one.verdict is verdict for one in found) for verdict in Verdict},
        "claims": [_claim(claim) for claim in dict.fromkeys(outcome.claim for outcome in found)],
        "conditions": [_condition(condition, ended, found) for condition in conditions(tables)],
    }


def as_json(content: Values) -> bytes:
    """The content as JSON. It has no number that JSON cannot express."""
    return json.dumps(_finite(content), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _pairs(values: Any) -> list[Values]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _method(method: Method) -> Values:
    return {"name": method.name, "title": method.title, "role": method.role, "about": method.about}


def _claim(claim: Claim) -> Values:
    return {"claim": claim.identifier, "says": claim.says, "where": claim.where, "source": claim.source}


def _condition(condition: Condition, ended: Tables, found: Iterable[Outcome]) -> Values:
    tables = for_condition(compared(ended), condition)
    return {
        "name": f"{condition.dataset}-{condition.partition}",
        "title": condition.title,
        "partition": condition.partition,
        "summary": [_summary_row(row) for row in summary(tables)],
        "rounds": [row for method in methods_in(tables.rounds) for row in _rounds(tables, method)],
        "parts": list(PARTS),
        "times": [
            {"method": row.method.name, "whole": row.whole, **dict(zip(PARTS, row.parts, strict=True))}
            for row in times(tables)
        ],
        "distances": [
            {"method": row.method, "seed": row.seed, "client": row.ordinal, "distance": row.label_distance}
            | {"selected": row.selected, "earned": row.earned}
            for row in tables.clients
            if row.method == "qi-dpfl"
        ],
        "calibration": [
            {"reward": run.reward, "total": run.total, "accuracy": run.accuracy}
            for run in tables.calibration
            if run.accuracy is not None
        ],
        "fits": [asdict(fit) for fit in tables.fits],
        "outcomes": [_outcome(outcome) for outcome in found if outcome.condition == condition],
    }


def _summary_row(row: SummaryRow) -> Values:
    measured = {
        "accuracy": row.accuracy,
        "mean_accuracy": row.mean_accuracy,
        "reward": row.reward,
        "cost": row.cost,
        "epsilon": row.epsilon,
        "epsilon_at_equal_money": row.epsilon_at_equal_money,
        "money_at_equal_epsilon": row.money_at_equal_epsilon,
        "selected": row.kept,
    }
    values: Values = {"method": row.method.name, "seeds": row.seeds, "guarantee": row.guarantee, "clients": row.clients}
    for name, found in measured.items():
        values |= _interval(name, found)
    return values


def _interval(name: str, found: Estimate | None) -> Values:
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def _rounds(tables: Tables, method: Method) -> list[Values]:
    """The means over the seeds in every round, with their intervals."""
    rows = [row for row in tables.rounds if row.method == method.name]
    columns = {
        "accuracy": dict(per_round(rows, lambda row: row.accuracy)),
        "reward": dict(per_round(rows, lambda row: row.reward)),
        "cost": dict(per_round(rows, lambda row: row.cost)),
    }
    numbers = sorted({number for found in columns.values() for number in found})
    return [
        {"method": method.name, "round": number}
        | {key: value for name, found in columns.items() for key, value in _interval(name, found.get(number)).items()}
        for number in numbers
    ]


def _outcome(outcome: Outcome) -> Values:
    return {
        "claim": outcome.claim.identifier,
        "verdict": outcome.verdict,
        "findings": [
            {
                "compares": formatting.comparison(finding.comparison),
                "first": method_named(finding.comparison.first).title,
                "second": method_named(finding.comparison.second).title,
                "metric": finding.comparison.metric,
                "effect": finding.effect.mean,
                "low": finding.effect.low,
                "high": finding.effect.high,
                "unit": finding.comparison.metric.unit,
                "needed": formatting.needed(finding.comparison.rule, finding.comparison.metric),
                "seeds": finding.effect.n,
                "verdict": finding.verdict,
                "remarks": "; ".join(finding.remarks),
            }
            for finding in outcome.findings
        ],
    }
