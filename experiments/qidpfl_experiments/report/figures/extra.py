"""Additional figures: accuracy against payments, and the time of a round by part."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.conditions import methods_in
from ...analysis.statistics import Estimate, estimate
from ...analysis.summary import PARTS, TimeRow, times
from ...methods import QI_DPFL, Method
from ...results.tables import CellRow, Tables
from .. import formatting
from .style import BLUE, GREY, ORANGE, SKY, Drawing, Looks

# The shift between methods that paid the same, as a fraction of the range of payments.
_BESIDE = 0.02
# Colours of the parts of a round, with hatches for prints without colours.
_PART_LOOKS = ((BLUE, ""), (SKY, "//"), (ORANGE, ".."), (GREY, "xx"))


def accuracy_against_money(tables: Tables, looks: Looks) -> Drawing | None:
    """The accuracy against the payments of a whole task, for all methods that pay."""
    methods = methods_in(tables.cells)
    paid = [
        (method, cells)
        for method, cells in ((method, _measured(tables, method)) for method in methods)
        if any(cell.paid for cell in cells)
    ]
    if not paid:
        return None
    limit = estimate(cell.accuracy for cell in tables.cells if cell.method == "fedavg")

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for (method, cells), shift in zip(paid, _shifts([cells for _, cells in paid]), strict=True):
            _cloud(axes, method, cells, looks, shift)
        if limit is not None:
            axes.axhline(100 * limit.mean, color="black", linestyle="--", linewidth=1, label="FedAvg (no noise)")
        axes.set_xlabel("paid to all clients in all rounds")
        axes.set_ylabel("accuracy in %, last round")
        figure.legend(loc="outside right center")
        return figure

    return Drawing(
        name="accuracy-money", title="Accuracy against payments", caption=_money_caption(paid, limit), draw=draw
    )


def _measured(tables: Tables, method: Method) -> list[CellRow]:
    return [cell for cell in tables.cells if cell.method == method.name and cell.accuracy is not None]


def _shifts(of_methods: Sequence[Sequence[CellRow]]) -> list[float]:
    """The shift of each method to the right, so that methods that paid the same are drawn side by side."""
    money = [math.fsum(cell.paid for cell in cells) / len(cells) for cells in of_methods]
    beside = _BESIDE * ((max(money) - min(money)) or max(money))
    return [beside * sum(abs(other - own) < beside for other in money[:index]) for index, own in enumerate(money)]


def _cloud(axes: Axes, method: Method, cells: Sequence[CellRow], looks: Looks, shift: float) -> None:
    """Draw the seeds as small dots and their mean as a large one."""
    look = looks[method.name]
    accuracies = [100 * cell.accuracy for cell in cells if cell.accuracy is not None]
    shown = [cell.paid + shift for cell in cells]
    axes.scatter(shown, accuracies, color=look.colour, s=10, alpha=0.4, linewidth=0)
    money, height = estimate(shown), estimate(accuracies)
    assert money is not None and height is not None
    axes.errorbar(
        money.mean,
        height.mean,
        xerr=money.margin,
        yerr=height.margin,
        color=look.colour,
        marker=look.marker,
        markersize=6.5,
        linewidth=1.2,
        capsize=2,
        linestyle="none",
        label=method.title,
    )


def _money_caption(paid: Sequence[tuple[Method, Sequence[CellRow]]], limit: Estimate | None) -> str:
    means = {method: estimate(cell.accuracy for cell in cells) for method, cells in paid}
    best = max(means, key=lambda method: found.mean if (found := means[method]) else 0.0)
    told = [
        f"{'the most accurate is ' if method is best else ''}{method.title}, "
        f"{formatting.mean(means[method], factor=100, digits=2, unit='%')} for "
        f"{formatting.mean(estimate(cell.paid for cell in cells))}"
        for method, cells in paid
        if method is best or method.name == QI_DPFL.name
    ]
    above = "" if limit is None else " The dashed line is the accuracy of all clients without noise and rewards."
    return (
        "Small dots are seeds. Large dots are their means with 95 % intervals in both directions. Methods that paid "
        f"the same are drawn side by side. {'; '.join(told)}.{above}"
    )


def wall_clock(tables: Tables, looks: Looks) -> Drawing | None:
    """The time of a round by part, for each method."""
    rows = times(tables)
    if not rows:
        return None

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 1.3 + 0.26 * len(rows)), layout="constrained")
        axes = figure.subplots()
        _bars(axes, rows)
        axes.set_yticks(range(len(rows)), [row.method.title for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("seconds per round, mean over rounds and seeds")
        figure.legend(loc="outside lower left", ncols=len(PARTS))
        return figure

    return Drawing(name="wall-clock", title="Time per round", caption=_time_caption(rows), draw=draw)


def _bars(axes: Axes, rows: Sequence[TimeRow]) -> None:
    starts = [0.0] * len(rows)
    for part, (name, (colour, hatch)) in enumerate(zip(PARTS, _PART_LOOKS, strict=True)):
        widths = [row.parts[part] for row in rows]
        axes.barh(
            range(len(rows)),
            widths,
            left=starts,
            height=0.65,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=name,
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]


def _time_caption(rows: Sequence[TimeRow]) -> str:
    sums = [math.fsum(row.parts[part] for row in rows) for part in range(len(PARTS))]
    whole = math.fsum(sums) or 1.0
    shares = ", ".join(f"{name} {share / whole:.0%}" for name, share in zip(PARTS, sums, strict=True))
    return f"Wall-clock time of a round; several tasks may have shared the machine. Over all methods: {shares}."
