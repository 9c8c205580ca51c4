"""The paper's figures: accuracy of the models; accuracy, cost and reward of the strategies; calibration.

A figure over the rounds shows the rounds on the left and the whole task on the right.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from qidpfl_shared.core.forecast import AccuracyCurve

from ...analysis.conditions import methods_in
from ...analysis.statistics import Estimate, estimate, per_round
from ...methods import QI_DPFL, Method, Role
from ...results.calibration import limits_in
from ...results.tables import CellRow, FitRow, RoundRow, Tables
from .. import formatting
from .style import BLUE, GREEN, VERMILION, Drawing, Lines, Looks, dots, focus, line

MODELS = ("fedavg", "fedavg-select", "fedavg-dp", "qi-dpfl")
STRATEGIES = ("qi-dpfl", "max", "max-select", "random", "random-select", "fedavg-dp")

Row = TypeVar("Row", CellRow, RoundRow)


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """The quantity that a figure over the rounds shows, per round and for the whole task."""

    label: str
    whole_label: str
    of_round: Callable[[RoundRow], float | None]
    of_cell: Callable[[CellRow], float | None]
    floor: float = -math.inf
    ceiling: float = math.inf
    digits: int | None = None
    unit: str = ""


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


_ACCURACY = _Measure(
    label="accuracy in %",
    whole_label="last round, in %",
    of_round=lambda row: _percent(row.accuracy),
    of_cell=lambda cell: _percent(cell.accuracy),
    floor=0,
    ceiling=100,
    digits=2,
    unit="%",
)
_COST = _Measure(
    label="server cost of the round",
    whole_label="all rounds",
    of_round=lambda row: row.cost,
    of_cell=lambda cell: cell.cost,
)
_REWARD = _Measure(
    label="reward of the round",
    whole_label="all rounds",
    of_round=lambda row: row.reward,
    of_cell=lambda cell: cell.reward,
    floor=0,
)


def accuracy_of_models(tables: Tables, looks: Looks) -> Drawing | None:
    """Accuracy with and without selection and noise (Figs. 3a–6a)."""
    return _over_rounds(
        tables,
        looks,
        methods=_shown(tables, MODELS, custom=False),
        measure=_ACCURACY,
        name="accuracy-models",
        title="Accuracy of the four models",
        about="Accuracy after each round on the reported half of the test records.",
    )


def accuracy_of_strategies(tables: Tables, looks: Looks) -> Drawing | None:
    """Accuracy of each reward strategy (Figs. 3b–6b)."""
    return _over_rounds(
        tables,
        looks,
        methods=_shown(tables, STRATEGIES),
        measure=_ACCURACY,
        name="accuracy-strategies",
        title="Accuracy of the strategies",
        about="Accuracy after each round on the reported half of the test records.",
    )


def cost_of_strategies(tables: Tables, looks: Looks) -> Drawing | None:
    """Server cost of each reward strategy (Figs. 3c–6c)."""
    return _over_rounds(
        tables,
        looks,
        methods=_shown(tables, STRATEGIES),
        measure=_COST,
        name="cost-strategies",
        title="Server cost of the strategies",
        about="The cost of each round in the paper's model: a bound on the loss plus rewards. It is not measured.",
    )


def reward_of_strategies(tables: Tables, looks: Looks) -> Drawing | None:
    """Reward of each reward strategy (Figs. 3d–6d)."""
    return _over_rounds(
        tables,
        looks,
        methods=_shown(tables, STRATEGIES),
        measure=_REWARD,
        name="reward-strategies",
        title="Reward of the strategies",
        about=f"The reward that all clients of a round share. FedAvg-DP pays the reward of QI-DPFL.{_limits(tables)}",
    )


def _limits(tables: Tables) -> str:
    limits = limits_in(tables)
    if limits is None:
        return ""
    low, high = formatting.number(limits.range.minimum), formatting.number(limits.range.maximum)
    above = "" if math.isinf(limits.range.maximum) else f" and at most {high}"
    return f" A method pays at least {low}{above} in a round (the {limits.kind} rewards)."


def _shown(tables: Tables, names: Sequence[str], *, custom: bool = True) -> tuple[Method, ...]:
    found = methods_in(tables.cells)
    return tuple(method for method in found if method.name in names or (custom and method.role is Role.CUSTOM))


def _over_rounds(
    tables: Tables,
    looks: Looks,
    *,
    methods: Sequence[Method],
    measure: _Measure,
    name: str,
    title: str,
    about: str,
) -> Drawing | None:
    lines = [(method, per_round(_of(tables.rounds, method), measure.of_round)) for method in methods]
    lines = [(method, points) for method, points in lines if points]
    totals = [(method, estimate(measure.of_cell(cell) for cell in _of(tables.cells, method))) for method, _ in lines]
    whole = [(method, found) for method, found in totals if found is not None]
    if not lines or not whole:
        return None

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
        _rounds(left, lines, looks, measure)
        dots(right, whole, looks)
        right.set_xlabel(measure.whole_label)
        right.xaxis.set_major_locator(MaxNLocator(4))
        return figure

    return Drawing(name=name, title=title, caption=f"{about} {_seen(whole, measure)}", draw=draw)


def _of(rows: Sequence[Row], method: Method) -> list[Row]:
    return [row for row in rows if row.method == method.name]


def _rounds(axes: Axes, lines: Lines, looks: Looks, measure: _Measure) -> None:
    for turn, (method, points) in enumerate(lines):
        line(axes, looks[method.name], points, turn=turn)
    focus(axes, [points for _, points in lines], floor=measure.floor, ceiling=measure.ceiling)
    axes.set_xlabel("round")
    axes.set_ylabel(measure.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def _seen(whole: Sequence[tuple[Method, Estimate]], measure: _Measure) -> str:
    """The values of the whole task as text: of all methods if they are few, else of QI-DPFL and the extremes."""
    named = [("", one) for one in whole]
    if len(whole) > len(MODELS):
        ranked = sorted(whole, key=lambda one: one[1].mean)
        extremes = [("the lowest is ", ranked[0]), ("the highest is ", ranked[-1])]
        between = [("", one) for one in ranked[1:-1] if one[0].name == QI_DPFL.name]
        named = [*between, *extremes]
    values = "; ".join(
        f"{rank}{method.title}, {formatting.mean(found, digits=measure.digits, unit=measure.unit)}"
        for rank, (method, found) in named
    )
    seeds = [found.n for _, found in whole]
    bands = f"Bands and bars are 95 % intervals over {formatting.range_of(seeds)} seeds."
    if max(seeds) == 1:
        bands = "There is one seed, so there are no bands."
    return f"On the right, {measure.whole_label.removesuffix(', in %')}: {values}. {bands}"


def calibration(tables: Tables, looks: Looks) -> Drawing | None:
    """Accuracy against the total budget, the fitted curve, and the admissible rewards (Fig. 2)."""
    rows = tables.calibration
    measured = [(row.total, row.accuracy) for row in rows if row.total is not None and row.accuracy is not None]
    if not measured:
        return None
    fit = tables.fits[0] if tables.fits else None
    curve = curve_of(fit)

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 3.3), layout="constrained")
        axes = figure.subplots()
        axes.scatter(
            [total for total, _ in measured],
            [100 * accuracy for _, accuracy in measured],
            color=BLUE,
            s=18,
            alpha=0.7,
            linewidth=0,
            label="runs",
        )
        if fit is not None and curve is not None:
            _curve(axes, curve)
            _admissible(axes, fit, curve)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda total, _: f"{total:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("total budget of a round, ∑ρ")
        axes.set_ylabel("validation accuracy in %")
        axes.legend(loc="lower right")
        return figure

    return Drawing(name="calibration", title="Calibration", caption=_calibration_caption(tables, fit), draw=draw)


def curve_of(fit: FitRow | None) -> AccuracyCurve | None:
    """The fitted curve with its range of validity; None if there is none."""
    if fit is None or fit.ceiling is None or fit.drop is None or fit.rate is None:
        return None
    return AccuracyCurve(
        ceiling=fit.ceiling, drop=fit.drop, rate=fit.rate, total_min=fit.total_min, total_max=fit.total_max
    )


def _curve(axes: Axes, curve: AccuracyCurve) -> None:
    totals = np.geomspace(curve.total_min, curve.total_max, 100)
    heights = [100 * curve.accuracy(total=float(total)) for total in totals]
    axes.plot(totals, heights, color=VERMILION, linewidth=1.6, label="fitted curve, within the calibrated range")


def _admissible(axes: Axes, fit: FitRow, curve: AccuracyCurve) -> None:
    """Shade the budgets that belong to the admissible rewards."""
    if fit.reward_min is None or fit.target is None:
        return
    needed = curve.needed_total(accuracy=fit.target)
    highest = math.inf if fit.target_max is None else curve.needed_total(accuracy=fit.target_max)
    low, high = max(needed, curve.total_min), min(highest, curve.total_max)
    axes.axvspan(low, high, color=GREEN, alpha=0.15, linewidth=0, label=f"admissible rewards: {_rewards(fit)}")


def _rewards(fit: FitRow) -> str:
    low, high = formatting.number(fit.reward_min), formatting.number(fit.reward_max)
    return f"{low} or more" if fit.reward_max is None else f"{low} to {high}"


def _calibration_caption(tables: Tables, fit: FitRow | None) -> str:
    kept = [row.selected for row in tables.calibration if row.accuracy is not None]
    about = (
        f"{len(kept)} runs with {formatting.range_of(kept)} clients and the same reward in every round, evaluated on "
        "validation records of the training data."
    )
    failed = len(tables.calibration) - len(kept)
    if failed:
        about += f" {failed} more {'run' if failed == 1 else 'runs'} failed."
    if fit is None:
        return f"{about} These are too few for a curve."
    if curve_of(fit) is None:
        return f"{about} They determine no curve ({fit.status})."
    fitted = f"The root mean square error of the curve is {formatting.number(100 * fit.rmse, digits=2)} points."
    if fit.reward_min is None:
        return f"{about} {fitted} No reward is admissible ({fit.range_status})."
    return f"{about} {fitted} Rewards of {_rewards(fit)} per round are admissible."
