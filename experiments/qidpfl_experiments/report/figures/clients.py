"""Figures about clients: budgets and payments, selection, and privacy ledgers."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.conditions import methods_in
from ...analysis.summary import guarantee_of
from ...methods import QI_DPFL, Kept, Method
from ...results.tables import ClientRow, Guarantee, Tables
from .. import formatting
from .style import GREY, VERMILION, Drawing, Looks

# The vertical spread of the dots of a row, so that they do not hide each other.
_SPREAD = 0.28


def budgets_and_payments(tables: Tables, looks: Looks) -> Drawing | None:
    """Budgets and payments of the clients of QI-DPFL, plotted against their privacy values."""
    kept = [row for row in tables.clients if row.method == QI_DPFL.name and row.selected]
    if not kept:
        return None

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _against_value(left, kept, [row.mean_rho for row in kept])
        left.set_ylabel("mean budget of a round, ρ")
        _against_value(right, kept, [row.earned for row in kept])
        right.set_ylabel("earned in all rounds")
        left.legend(loc="best")
        return figure

    active = [row for row in kept if row.updates]
    out = len(kept) - len(active)
    caption = (
        f"Every dot is one client of one seed of QI-DPFL, {len(kept)} in total. A client with a lower privacy value "
        f"sells more privacy and earns more, regardless of the number of its records. {_priced_out(out)}"
        f"{_pay_range(active)}"
    )
    return Drawing(name="budgets-payments", title="Budgets and payments by client", caption=caption, draw=draw)


def _against_value(axes: Axes, rows: Sequence[ClientRow], heights: Sequence[float]) -> None:
    for active, colour, marker, label in ((True, VERMILION, "o", "took part"), (False, GREY, "x", "priced out")):
        shown = [(row.privacy_value, height) for row, height in zip(rows, heights, strict=True) if _active(row, active)]
        if shown:
            values, of_rows = zip(*shown, strict=True)
            axes.scatter(values, of_rows, color=colour, marker=marker, s=22, alpha=0.7, linewidth=1, label=label)
    axes.set_xlabel("privacy value of the client, ν")
    axes.set_ylim(bottom=-0.04 * max(heights))


def _active(row: ClientRow, active: bool) -> bool:
    return (row.updates > 0) == active


def _priced_out(count: int) -> str:
    if not count:
        return "No client was priced out. "
    return f"{count} {'was' if count == 1 else 'were'} selected but priced out by cheaper clients. "


def _pay_range(rows: Sequence[ClientRow]) -> str:
    if not rows:
        return ""
    earned = [row.earned for row in rows]
    return f"Clients that took part earned {formatting.number(min(earned))} to {formatting.number(max(earned))}."


def distance_and_selection(tables: Tables, looks: Looks) -> Drawing | None:
    """The clients that each rule keeps, by the distance of their labels from the reference."""
    rules = [method for method in methods_in(tables.clients) if _selects(method, tables)]
    if not rules:
        return None
    by_rule = [(method, [row for row in tables.clients if row.method == method.name]) for method in rules]

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 1.3 + 0.5 * len(rules)), layout="constrained")
        axes = figure.subplots()
        for height, (method, rows) in enumerate(by_rule):
            _kept_and_left(axes, height, rows, looks[method.name].colour)
        axes.set_xlabel("distance of the client's labels from the reference, θ (filled: kept; hollow: left out)")
        _rows(axes, [method.title for method, _ in by_rule])
        axes.set_xlim(left=0)
        return figure

    caption = "Every dot is one client of one seed, at the distance of the label counts that it sent. " + " ".join(
        f"{method.title} kept {sum(row.selected for row in rows)} of {len(rows)}{_edge(rows)}."
        for method, rows in by_rule
    )
    return Drawing(name="label-distance", title="Label distance and selection", caption=caption, draw=draw)


def _selects(method: Method, tables: Tables) -> bool:
    """Show one method per rule: methods with the same rule keep the same clients."""
    shown = {Kept.THRESHOLD: (QI_DPFL.name, "fedavg-select"), Kept.BLIND: ("blind-dp", "blind")}
    names = {row.method for row in tables.clients}
    alike = shown.get(method.kept)
    if alike is None:
        return method.kept is not Kept.ALL
    return method.name == next((name for name in alike if name in names), None)


def _kept_and_left(axes: Axes, height: int, rows: Sequence[ClientRow], colour: str) -> None:
    for kept in (False, True):
        shown = [row for row in rows if row.selected is kept]
        axes.scatter(
            [row.label_distance for row in shown],
            _spread(height, len(shown)),
            facecolor=colour if kept else "none",
            edgecolor=colour,
            s=20,
            alpha=0.75,
            linewidth=0.9,
        )


def _spread(height: int, count: int) -> list[float]:
    """Heights around a row, the same in every run."""
    golden = (np.arange(count) * 0.618033988749895) % 1.0
    return [height + float(shift) for shift in _SPREAD * (2 * golden - 1)]


def _edge(rows: Sequence[ClientRow]) -> str:
    kept = [row.label_distance for row in rows if row.selected]
    left = [row.label_distance for row in rows if not row.selected]
    if not kept or not left:
        return ""
    farthest, nearest = formatting.number(max(kept)), formatting.number(min(left))
    return f" (largest distance kept {farthest}, smallest distance left out {nearest})"


def _rows(axes: Axes, titles: Sequence[str]) -> None:
    axes.set_yticks(range(len(titles)), titles)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def privacy_ledgers(tables: Tables, looks: Looks) -> Drawing | None:
    """The privacy loss of every client by its own ledger, as ε at the δ of the task."""
    worth = {method: guarantee_of(tables, method) for method in methods_in(tables.clients)}
    shown = [(method, _epsilons(tables, method)) for method in worth if worth[method] is not Guarantee.NONE]
    if not shown:
        return None

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 1.2 + 0.28 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for height, (method, values) in enumerate(shown):
            colour = looks[method.name].colour
            axes.scatter(values, _spread(height, len(values)), color=colour, s=9, alpha=0.45, linewidth=0)
            axes.plot(max(values), height, color=colour, marker="|", markersize=15, markeredgewidth=2)
        axes.set_xlabel("ε at the δ of the task, from the ledger of the client (bar: the worst client)")
        _rows(axes, [_with_warning(method, worth[method]) for method, _ in shown])
        axes.set_xlim(left=0)
        return figure

    return Drawing(name="privacy-ledgers", title="Privacy ledgers", caption=_ledgers_caption(tables, worth), draw=draw)


def _with_warning(method: Method, guarantee: Guarantee) -> str:
    return f"{method.title} (heuristic)" if guarantee is Guarantee.HEURISTIC else method.title


def _ledgers_caption(tables: Tables, worth: Mapping[Method, Guarantee]) -> str:
    about = "Every dot is one client of one seed and covers all its releases, including the label histogram."
    told = {
        guarantee: "; ".join(
            f"{method.title} {formatting.number(max(_epsilons(tables, method)))}"
            for method in worth
            if worth[method] is guarantee
        )
        for guarantee in (Guarantee.PROVEN, Guarantee.HEURISTIC)
    }
    proven = f" The guarantee of a method is that of its worst client: {told[Guarantee.PROVEN]}."
    heuristic = f" Heuristic noise, no privacy guarantee; the proven part is: {told[Guarantee.HEURISTIC]}."
    without = [method.title for method in worth if worth[method] is Guarantee.NONE]
    none = f" No guarantee: {', '.join(without)}."
    return (
        about
        + (proven if told[Guarantee.PROVEN] else "")
        + (heuristic if told[Guarantee.HEURISTIC] else "")
        + (none if without else "")
    )


def _epsilons(tables: Tables, method: Method) -> list[float]:
    rows = [row for row in tables.clients if row.method == method.name]
    return [row.epsilon for row in rows if row.epsilon is not None]
