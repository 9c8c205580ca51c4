"""The chart of a task."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from task_record import TaskRecord, part_of

from qidpfl_shared.core.money import from_micro


def draw(record: TaskRecord, path: Path) -> None:
    """Save accuracy, reward, budgets and selection as PNG."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    figure.suptitle(
        f"QI-DPFL on {record.task.spec.workload.dataset}: {len(record.selected)} clients sell their privacy"
    )
    _selection(axes[0, 0], record)
    _rewards(axes[0, 1], record)
    _budgets(axes[1, 0], record)
    _accuracy(axes[1, 1], record)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


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
        colour = plt.get_cmap("viridis")(index / max(1, len(by_value) - 1))
        axes.plot(*zip(*sold, strict=True), color=colour, label=f"#{client.ordinal}, ν = {client.privacy_value:.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Budgets: a lower privacy value sells more", xlabel="round", ylabel="rho", ylim=(0, None))
    axes.legend(fontsize="small")


def _accuracy(axes: Axes, record: TaskRecord) -> None:
    scored = [(result.round_number, result.accuracy) for result in record.rounds if result.accuracy is not None]
    if scored:
        axes.plot(*zip(*scored, strict=True), color="tab:green")
    axes.axhline(1 / record.task.spec.workload.labels, color="grey", linestyle=":", linewidth=1)
    numbers = [result.round_number for result in record.rounds]
    epsilon = axes.twinx()
    epsilon.plot(numbers, [record.epsilon(rounds=number) for number in numbers], color="tab:purple", linestyle="--")
    epsilon.set(ylabel="epsilon (dashed)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Accuracy (dotted: chance) and privacy loss", xlabel="round", ylabel="accuracy", ylim=(0, 1))
