"""The chart of a task: selection, money, budgets, accuracy and privacy loss."""

import io
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qidpfl_shared.core.money import from_micro

from .record import TaskRecord, part_of


class Chart(Figure):
    """A figure of matplotlib that a notebook shows by itself. No window and no global state of pyplot is needed."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=90)
        return data.getvalue()

    def save(self, path: Path | str) -> None:
        """Save it to a file, as PNG, PDF or SVG by the ending of its name."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.savefig(path, dpi=110)


def draw(record: TaskRecord) -> Chart:
    """The chart of a task."""
    chart = Chart(figsize=(11, 7), layout="constrained")
    axes = chart.subplots(2, 2)
    chart.suptitle(f"QI-DPFL on {record.task.spec.workload.dataset}: {len(record.selected)} clients sell their privacy")
    _selection(axes[0, 0], record)
    _rewards(axes[0, 1], record)
    _budgets(axes[1, 0], record)
    _accuracy(axes[1, 1], record)
    return chart


def _selection(axes: Axes, record: TaskRecord) -> None:
    colours = ["tab:blue" if client.state == "selected" else "tab:red" for client in record.clients]
    distances = [client.label_distance or 0 for client in record.clients]
    axes.bar([str(client.ordinal) for client in record.clients], distances, color=colours)
    axes.axhline(record.task.spec.selection.distance_threshold, color="black", linestyle="--", linewidth=1)
    axes.set(title="Selection (red: refused)", xlabel="client", ylabel="label distance")


def _rewards(axes: Axes, record: TaskRecord) -> None:
    numbers = [result.round_number for result in record.rounds]
    axes.plot(numbers, [from_micro(result.reward_micro) for result in record.rounds], label="reward")
    axes.plot(numbers, [from_micro(result.paid_micro) for result in record.rounds], "--", label="paid")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Reward and payments", xlabel="round", ylabel="units", ylim=(0, None))
    axes.legend()


def _budgets(axes: Axes, record: TaskRecord) -> None:
    by_value = sorted(record.selected, key=lambda client: client.privacy_value or 0)
    for index, client in enumerate(by_value):
        parts = [(result.round_number, part_of(result, client.ordinal)) for result in record.rounds]
        sold = [(number, part.rho) for number, part in parts if part is not None and part.delivered]
        colour = colormaps["viridis"](index / max(1, len(by_value) - 1))
        numbers, rhos = [number for number, _ in sold], [rho for _, rho in sold]
        axes.plot(numbers, rhos, color=colour, label=f"#{client.ordinal}, ν = {client.privacy_value or 0:.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Budgets: a lower privacy value sells more", xlabel="round", ylabel="rho", ylim=(0, None))
    if by_value:
        axes.legend(fontsize="small")


def _accuracy(axes: Axes, record: TaskRecord) -> None:
    scored = [(result.round_number, result.accuracy) for result in record.rounds if result.accuracy is not None]
    if scored:
        axes.plot(*zip(*scored, strict=True), color="tab:green")
    axes.axhline(1 / record.task.spec.workload.labels, color="grey", linestyle=":", linewidth=1)
    numbers = [result.round_number for result in record.rounds]
    epsilon = axes.twinx()
    epsilon.plot(numbers, record.epsilons()[1:], color="tab:purple", linestyle="--")
    epsilon.set(ylabel="epsilon (dashed)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Accuracy (dotted: chance) and privacy loss", xlabel="round", ylabel="accuracy", ylim=(0, 1))
