"""All figures of a results folder, for each condition: the paper's figures, then additional ones."""

import re
from dataclasses import dataclass

from ...analysis.conditions import Condition, compared, conditions, finished, for_condition
from ...results.tables import Tables
from .clients import budgets_and_payments, distance_and_selection, privacy_ledgers
from .extra import accuracy_against_money, wall_clock
from .paper import accuracy_of_models, accuracy_of_strategies, calibration, cost_of_strategies, reward_of_strategies
from .style import looks, rendered

FIGURES = (
    accuracy_of_models,
    accuracy_of_strategies,
    cost_of_strategies,
    reward_of_strategies,
    calibration,
    budgets_and_payments,
    distance_and_selection,
    privacy_ledgers,
    accuracy_against_money,
    wall_clock,
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as a PNG file, with its condition and caption."""

    condition: Condition
    name: str
    title: str
    caption: str
    png: bytes

    @property
    def file_name(self) -> str:
        """The name of its file."""
        words = (self.condition.dataset, self.condition.partition, self.name)
        return "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words) + ".png"


def pictures(tables: Tables, *, scale_note: str = "") -> tuple[Picture, ...]:
    """All figures that can be drawn from the finished cells."""
    ended = compared(finished(tables))
    look = looks(cell.method for cell in ended.cells)
    drawings = (
        (condition, figure(for_condition(ended, condition), look))
        for condition in conditions(tables)
        for figure in FIGURES
    )
    return tuple(
        Picture(
            condition=condition,
            name=drawing.name,
            title=drawing.title,
            caption=drawing.caption,
            png=rendered(drawing, condition, scale_note=scale_note),
        )
        for condition, drawing in drawings
        if drawing is not None
    )
