"""The style of figures: one look per method in all figures, and the same bytes in every run.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Related methods share a colour and
differ in line style and marker, which also works in a print without colours.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.conditions import Condition
from ...analysis.statistics import Estimate
from ...methods import BY_NAME, Method

_DPI = 110
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "figure.dpi": _DPI,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
BLACK, GREY = "#000000", "#7f7f7f"
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour, line and marker of a method."""

    colour: str
    line: str | tuple[int, tuple[int, ...]]
    marker: str


Looks = Mapping[str, Look]
Points = Sequence[tuple[int, Estimate]]
Lines = Sequence[tuple[Method, Points]]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure of one condition that can be drawn, with its caption."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]


_LOOKS = {
    "fedavg": Look(colour=BLACK, line="--", marker="s"),
    "fedavg-select": Look(colour=BLUE, line="-", marker="D"),
    "fedavg-dp": Look(colour=SKY, line="--", marker="v"),
    "qi-dpfl": Look(colour=VERMILION, line="-", marker="o"),
    "max": Look(colour=GREEN, line="--", marker="^"),
    "max-select": Look(colour=GREEN, line="-", marker="P"),
    "random": Look(colour=ORANGE, line="--", marker="<"),
    "random-select": Look(colour=ORANGE, line="-", marker="X"),
    "blind": Look(colour=GREY, line="--", marker="p"),
    "blind-dp": Look(colour=GREY, line=":", marker="h"),
    "fedavg-dp-optimal": Look(colour=SKY, line=":", marker=">"),
    "qi-dpfl-union": Look(colour=PURPLE, line="-", marker="d"),
    "fedavg-dp-lowpass": Look(colour=SKY, line="-.", marker="1"),
    "qi-auction": Look(colour=PURPLE, line="--", marker="x"),
    "qi-auction-plus": Look(colour=PURPLE, line=":", marker="|"),
    "printed-fedavg": Look(colour=BLACK, line=":", marker="2"),
    "printed-fedavg-select": Look(colour=BLUE, line=":", marker="3"),
    "printed-fedavg-dp": Look(colour=SKY, line=(0, (1, 3)), marker="4"),
    "printed-qi-dpfl": Look(colour=VERMILION, line=":", marker="+"),
}
_CUSTOM_COLOURS = ("#882255", "#332288", "#44AA99", "#999933")
_CUSTOM_LINES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-.", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)))
_CUSTOM_MARKERS = ("*", "8", "H")


def looks(names: Iterable[str]) -> Looks:
    """The look of every method. Custom methods get theirs in the order of their names."""
    custom = sorted(set(names) - BY_NAME.keys())
    return _LOOKS | {name: _custom_look(index) for index, name in enumerate(custom)}


def _custom_look(index: int) -> Look:
    turn = index // len(_CUSTOM_COLOURS)
    return Look(
        colour=_CUSTOM_COLOURS[index % len(_CUSTOM_COLOURS)],
        line=_CUSTOM_LINES[turn % len(_CUSTOM_LINES)],
        marker=_CUSTOM_MARKERS[turn % len(_CUSTOM_MARKERS)],
    )


def rendered(drawing: Drawing, condition: Condition, *, scale_note: str = "") -> bytes:
    """The PNG of a figure with its title. The title includes the scale note because figures are often copied alone.

    The user's matplotlib settings have no effect on it and are not changed.
    """
    with matplotlib.style.context(["default", _STYLE]):
        buffer = io.BytesIO()
        figure = drawing.draw()
        title = f"{drawing.title} ({condition.title})" + (f"\nnot at full scale: {scale_note}" if scale_note else "")
        figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=10)
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()


def line(axes: Axes, look: Look, points: Points, *, turn: int) -> None:
    """Draw a mean over the rounds with its confidence band.

    Each line has its markers at other rounds, so that the markers of all lines are visible where lines coincide.
    """
    step = max(1, len(points) // 6)
    rounds = [number for number, _ in points]
    low = [np.nan if found.low is None else found.low for _, found in points]
    high = [np.nan if found.high is None else found.high for _, found in points]
    axes.fill_between(rounds, low, high, color=look.colour, alpha=0.16, linewidth=0)
    axes.plot(
        rounds,
        [found.mean for _, found in points],
        color=look.colour,
        linestyle=look.line,
        linewidth=1.5,
        marker=look.marker,
        markersize=4.5,
        markevery=(turn % step, step),
    )


def dots(axes: Axes, rows: Sequence[tuple[Method, Estimate]], look: Looks) -> None:
    """Draw a mean with its interval per method. The method names on the right are also the legend."""
    for height, (method, found) in enumerate(rows):
        shown = look[method.name]
        axes.errorbar(
            found.mean,
            height,
            xerr=found.margin,
            color=shown.colour,
            marker=shown.marker,
            markersize=6,
            linewidth=1.5,
            capsize=2.5,
            linestyle="none",
        )
    axes.yaxis.tick_right()
    axes.set_yticks(range(len(rows)), [method.title for method, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.spines["left"].set_visible(False)


def focus(axes: Axes, lines: Iterable[Points], *, floor: float, ceiling: float) -> None:
    """Limit the axis so that means stay readable: with few seeds the bands can be very wide."""
    points = [found for points in lines for _, found in points]
    low, high = min(found.mean for found in points), max(found.mean for found in points)
    room = 0.5 * (high - low) or 0.1 * abs(high) or 1.0
    lowest = min(found.mean if found.low is None else found.low for found in points)
    highest = max(found.mean if found.high is None else found.high for found in points)
    gap = 0.05 * (high - low) or 0.02 * abs(high) or 0.1
    axes.set_ylim(max(floor, low - room, lowest - gap), min(ceiling, high + room, highest + gap))
