"""Evaluates the claims: what the tables say about each claim under each condition."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..methods import Reward, Role
from ..results.calibration import limits_in
from ..results.mistakes import error_of_records
from ..results.tables import CellRow, Tables
from .claims import PAPER_CLAIMS, Claim, Comparison, Metric
from .conditions import IID, Condition, conditions, finished, for_condition, method_named, methods_in
from .our_claims import OUR_CLAIMS, claims_about
from .redraws import remark_on_redraws
from .statistics import Differences, Estimate, differences, seeds_needed, widened
from .verdicts import ClaimRule, Order, Verdict, all_of, verdict_on

_COLUMNS: dict[Metric, Callable[[CellRow], float | None]] = {
    Metric.ACCURACY: lambda cell: None if cell.accuracy is None else 100 * cell.accuracy,
    Metric.LEARNING: lambda cell: None if cell.mean_accuracy is None else 100 * cell.mean_accuracy,
    Metric.REWARD: lambda cell: cell.reward,
    Metric.COST: lambda cell: cell.cost,
    Metric.EPSILON: lambda cell: cell.epsilon,
    Metric.CLIENT_REGRET: lambda cell: cell.client_regret,
    Metric.SERVER_REGRET: lambda cell: cell.server_regret,
    Metric.DISTANCE: lambda cell: cell.distance,
}
# Rewards are rounded to micro-units. Factors that differ by less than this are equal.
_SAME_FACTOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison under one condition: the effect in the unit of its metric, the verdict, and remarks on it.

    The interval of an accuracy includes `test_error`, the standard error of the choice of test records, where it is
    known. `seeds_needed` seeds would resolve the amount of the claim.
    """

    condition: Condition
    comparison: Comparison
    effect: Estimate
    verdict: Verdict
    remarks: tuple[str, ...]
    test_error: float | None = None
    seeds_needed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One claim under one condition: its verdict and its findings."""

    claim: Claim
    condition: Condition
    findings: tuple[Finding, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every comparison of the claim could be made."""
        return len(self.findings) == len(self.claim.comparisons)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all comparisons together."""
        return all_of((finding.verdict for finding in self.findings), complete=self.is_complete)


def outcomes(tables: Tables) -> tuple[Outcome, ...]:
    """The outcomes of all claims, under each condition for which at least one comparison was run."""
    ended = finished(tables)
    custom = [method for method in methods_in(ended.cells) if method.role is Role.CUSTOM]
    claims = (*PAPER_CLAIMS, *OUR_CLAIMS, *(claim for method in custom for claim in claims_about(method)))
    found = (
        Outcome(claim=claim, condition=condition, findings=_findings(claim, ended, condition))
        for claim in claims
        for condition in conditions(tables)
    )
    return tuple(outcome for outcome in found if outcome.findings)


def _findings(claim: Claim, tables: Tables, condition: Condition) -> tuple[Finding, ...]:
    made = (finding_of(comparison, tables, condition) for comparison in claim.comparisons)
    return tuple(finding for finding in made if finding is not None)


def finding_of(comparison: Comparison, tables: Tables, condition: Condition) -> Finding | None:
    """The finding of a comparison from the finished cells of one condition; None if it was not run."""
    if comparison.beyond_iid and condition.is_iid:
        return None
    measured = _measured(comparison, tables, condition)
    effect = measured.estimate
    if effect is None:
        return None
    here = for_condition(tables, condition)
    error = _test_error(comparison, here, measured)
    effect = widened(effect, error)
    verdict = verdict_on(comparison.rule, measured.values, effect)
    remarks = (
        *_remarks_on_rule(comparison.rule, measured, effect, verdict),
        *_remarks_on_clients(comparison, here.cells),
        *(_remarks_on_growth(here, comparison.first) if comparison.metric is Metric.GROWTH else ()),
        *_remarks_on_range(comparison, here),
        *_remarks_on_redraws(comparison, here, measured, verdict),
        *_remarks_on_seeds(effect),
    )
    return Finding(
        condition=condition,
        comparison=comparison,
        effect=effect,
        verdict=verdict,
        remarks=remarks,
        test_error=error,
        seeds_needed=None
        if comparison.rule.because or comparison.rule.each_seed or not comparison.second
        else seeds_needed(measured.values, comparison.rule.amount, error=error),
    )


def _test_error(comparison: Comparison, tables: Tables, measured: Differences[int]) -> float | None:
    """The error of the test set in points; None if it is unknown or the comparison is not one of final accuracies."""
    if comparison.metric is not Metric.ACCURACY or comparison.beyond_iid:
        return None
    first, second = (
        {row.seed: row for row in tables.mistakes if row.method == name}
        for name in (comparison.first, comparison.second)
    )
    error = error_of_records(first, second, measured.by_pair)
    return None if error is None else 100 * error


def _measured(comparison: Comparison, tables: Tables, condition: Condition) -> Differences[int]:
    """The effect of every seed."""
    here = for_condition(tables, condition)
    if comparison.metric is Metric.GROWTH:
        rewards = _rewards(here, comparison.first)
        last = {seed: of_rounds[-1] for seed, of_rounds in rewards.items()}
        return differences(last, {seed: of_rounds[0] for seed, of_rounds in rewards.items()}, percent=True)
    if comparison.metric is Metric.GAIN:
        return _gain_of_a_lie(comparison, here)
    if not comparison.second:
        column = _COLUMNS[comparison.metric]
        found = {cell.seed: column(cell) for cell in here.cells if cell.method == comparison.first}
        known = {seed: value for seed, value in sorted(found.items()) if value is not None}
        return Differences(by_pair=known, missing=len(found) - len(known))
    effects = _compared(comparison, here.cells)
    if not comparison.beyond_iid:
        return effects
    among_iid = for_condition(tables, Condition(dataset=condition.dataset, partition=IID))
    return differences(effects.by_pair, _compared(comparison, among_iid.cells).by_pair)


def _compared(comparison: Comparison, cells: Iterable[CellRow]) -> Differences[int]:
    column = _COLUMNS[comparison.metric]
    by_method: dict[str, dict[int, float | None]] = {comparison.first: {}, comparison.second: {}}
    for cell in sorted(cells, key=lambda cell: cell.seed):
        if cell.method in by_method:
            by_method[cell.method][cell.seed] = column(cell)
    percent = comparison.metric.unit == "%"
    return differences(by_method[comparison.first], by_method[comparison.second], percent=percent)


def _gain_of_a_lie(comparison: Comparison, tables: Tables) -> Differences[int]:
    """What the liar of each seed gains against the run in which it is honest, in percent of the mean payment."""
    rows = {(row.method, row.seed, row.ordinal): row for row in tables.clients}
    paid = {cell.seed: cell.paid / cell.clients for cell in tables.cells if cell.method == comparison.second}
    gains: dict[int, float | None] = {}
    for (method, seed, ordinal), row in sorted(rows.items()):
        honest = rows.get((comparison.second, seed, ordinal))
        if method != comparison.first or row.misreport == 1.0 or honest is None or not paid.get(seed):
            continue
        if row.utility is not None and honest.utility is not None:
            gains[seed] = 100 * (row.utility - honest.utility) / paid[seed]
    return differences(gains, dict.fromkeys(gains, 0.0))


def _rewards_by_seed(tables: Tables, method: str) -> dict[int, list[float]]:
    """The rewards that a method paid, round by round, for each seed."""
    by_seed: dict[int, list[float]] = {}
    for row in sorted(tables.rounds, key=lambda row: (row.seed, row.round_number)):
        if row.method == method:
            by_seed.setdefault(row.seed, []).append(row.reward)
    return by_seed


def _rewards(tables: Tables, method: str) -> dict[int, list[float]]:
    """The rewards of the rounds, for each seed with at least two rounds."""
    return {seed: rewards for seed, rewards in _rewards_by_seed(tables, method).items() if len(rewards) > 1}


def _remarks_on_rule(rule: ClaimRule, measured: Differences[int], effect: Estimate, verdict: Verdict) -> Iterable[str]:
    if verdict is Verdict.TRIVIALLY_TRUE:
        yield f"by construction: {rule.because}"
    sign = -1 if rule.order is Order.LOWER else 1
    if rule.because and verdict is Verdict.DOES_NOT_HOLD:
        against = sum(sign * value <= 0 for value in measured.values)
        yield f"violated in {against} of {effect.n} seeds, although it holds by construction"
        equal = sum(value == 0 for value in measured.values)
        if equal:
            yield f"exactly equal{_in_some(equal, effect.n)}"
        return
    if effect.low is None or effect.high is None or rule.because:
        return
    if rule.each_seed and rule.order is not Order.NOT_HIGHER:
        yield f"in {sum(sign * value > 0 for value in measured.values)} of {effect.n} seeds"
        return
    if rule.order in (Order.ALIKE, Order.NOT_HIGHER):
        return
    if sign * effect.mean < 0 and (effect.high < 0 or effect.low > 0):
        yield "the opposite holds"
    elif verdict is Verdict.DOES_NOT_HOLD and effect.low * effect.high > 0:
        yield "there is a difference, but it is smaller than the resolution"


def _remarks_on_clients(comparison: Comparison, cells: Iterable[CellRow]) -> Iterable[str]:
    """Comparisons without a difference: selections that keep all clients, and identical models."""
    of = {(cell.method, cell.seed): cell for cell in cells}
    seeds = [seed for method, seed in of if method == comparison.first and (comparison.second, seed) in of]
    pairs = [(of[comparison.first, seed], of[comparison.second, seed]) for seed in seeds]
    if method_named(comparison.first).kept is not method_named(comparison.second).kept:
        all_kept = sum(all(cell.selected == cell.clients for cell in pair) for pair in pairs)
        if all_kept:
            yield f"selection kept all clients{_in_some(all_kept, len(pairs))}"
    same = sum(bool(one.model_digest) and one.model_digest == other.model_digest for one, other in pairs)
    if same:
        yield f"identical models{_in_some(same, len(pairs))}"


def _in_some(count: int, total: int) -> str:
    return "" if count == total else f" in {count} of {total} seeds"


def _remarks_on_growth(tables: Tables, method: str) -> Iterable[str]:
    pairs = [pair for rewards in _rewards(tables, method).values() for pair in pairwise(rewards)]
    steps = [later / earlier for earlier, later in pairs if earlier > 0]
    if not steps:
        return
    low, high = min(steps), max(steps)
    if high - low < _SAME_FACTOR:
        factor = sum(steps) / len(steps)
        yield f"the same factor {factor:.4f} in every round, as given by a discount of {factor**-2:.4f}"
    else:
        yield f"the factor from round to round is between {low:.4f} and {high:.4f}"


def _remarks_on_range(comparison: Comparison, tables: Tables) -> Iterable[str]:
    """Rounds in which the limits of the reward range determine the reward, not the method."""
    limits = limits_in(tables)
    if comparison.metric.unit != "%" or method_named(comparison.first).reward is not Reward.OPTIMAL or limits is None:
        return
    paid = [reward for rewards in _rewards_by_seed(tables, comparison.first).values() for reward in rewards]
    for end, bound in (("smallest", limits.at_minimum), ("largest", limits.at_maximum)):
        bounded = sum(map(bound, paid))
        if bounded:
            title = method_named(comparison.first).title
            yield f"{title} pays the {end} {limits.kind} reward in {bounded} of {len(paid)} rounds"


def _remarks_on_redraws(
    comparison: Comparison, tables: Tables, measured: Differences[int], verdict: Verdict
) -> Iterable[str]:
    if comparison.metric is not Metric.GROWTH:
        remark = remark_on_redraws(comparison, tables, measured.by_pair, verdict)
        if remark is not None:
            yield remark


def _remarks_on_seeds(effect: Estimate) -> Iterable[str]:
    if effect.n == 1:
        yield "one seed, so there is no interval"
    if effect.missing:
        seeds = "seed was" if effect.missing == 1 else "seeds were"
        yield f"{effect.missing} {seeds} left out because one method has no value"


def resolution_in_words(found: Iterable[Outcome]) -> str:
    """How many seeds the stated resolution of accuracy needs, as one line; empty without such a comparison."""
    needed = [
        (finding.seeds_needed, finding)
        for outcome in found
        for finding in outcome.findings
        if finding.comparison.metric is Metric.ACCURACY and finding.seeds_needed is not None
    ]
    if not needed:
        return ""
    most, worst = max(needed, key=lambda pair: pair[0])
    count = sum(one <= finding.effect.n for one, finding in needed)
    title = f"{method_named(worst.comparison.first).title} − {method_named(worst.comparison.second).title}"
    seeds = f"{most:g} seeds" if most < float("inf") else "more test records, not more seeds"
    return (
        f"{count} of {len(needed)} comparisons of accuracy have as many seeds as their resolution needs; all of them"
        f" would with {seeds} ({title} on {worst.condition.title})"
    )


def write_claims(path: Path, found: Iterable[Outcome]) -> None:
    """Write a CSV file with one line per comparison."""
    names = ("claim", "claim_verdict", "source", "where", "dataset", "partition", "measure", "first", "second", "order")
    values = (
        "amount",
        "effect",
        "low",
        "high",
        "unit",
        "n",
        "missing",
        "test_error",
        "seeds_needed",
        "verdict",
        "remarks",
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*names, *values))
        for outcome in found:
            for finding in outcome.findings:
                writer.writerow((*_named(outcome, finding), *_valued(finding)))


def _named(outcome: Outcome, finding: Finding) -> tuple[str, ...]:
    claim, condition, comparison = outcome.claim, outcome.condition, finding.comparison
    compared = (comparison.metric, comparison.first, comparison.second, comparison.rule.order)
    return (
        *(claim.identifier, outcome.verdict, claim.source, claim.where, condition.dataset, condition.partition),
        *map(str, compared),
    )


def _valued(finding: Finding) -> tuple[object, ...]:
    effect = finding.effect
    interval = ("" if end is None else end for end in (effect.low, effect.high))
    return (
        *(finding.comparison.rule.amount, effect.mean, *interval, finding.comparison.metric.unit),
        *(
            effect.n,
            effect.missing,
            *("" if one is None else one for one in (finding.test_error, finding.seeds_needed)),
        ),
        *(finding.verdict, "; ".join(finding.remarks)),
    )
