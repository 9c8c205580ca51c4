"""Writes the report of a results folder: figures, a self-contained HTML page, a README, and the claims as CSV."""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..analysis.claims import Claim
from ..analysis.conditions import Condition, compared, conditions, failures, finished, for_condition
from ..analysis.evaluate import Outcome, outcomes, resolution_in_words, write_claims
from ..analysis.summary import PARTS, SummaryRow, TimeRow, heuristic_methods, summary, times
from ..analysis.verdicts import Verdict
from ..results.tables import Tables
from . import formatting
from .about import About, flat
from .caveats import remarks_on
from .figures import Picture, pictures

FIGURES_FOLDER = "figures"


@dataclass(frozen=True, kw_only=True)
class Section:
    """The part of the report about one condition."""

    condition: Condition
    summary: tuple[SummaryRow, ...]
    outcomes: tuple[Outcome, ...]
    pictures: tuple[Picture, ...]
    times: tuple[TimeRow, ...]

    @property
    def anchor(self) -> str:
        """The name of its anchor in the page."""
        return f"{self.condition.dataset}-{self.condition.partition}".replace(" ", "-")


def write_report(folder: Path, tables: Tables, about: About) -> tuple[Outcome, ...]:
    """Write figures/*.png, report.html, README.md and claims.csv into the folder, and return the outcomes.

    Old figures are removed first, so that the folder never mixes the figures of two runs.
    """
    drawn, found = pictures(tables, scale_note=about.scale_note), outcomes(tables)
    figures = folder / FIGURES_FOLDER
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.png"):
        old.unlink()
    for picture in drawn:
        (figures / picture.file_name).write_bytes(picture.png)
    write_claims(folder / "claims.csv", found)
    values = _values(tables, about, drawn, found)
    environment = _environment()
    for name, template in (("report.html", "report.html.jinja"), ("README.md", "readme.md.jinja")):
        (folder / name).write_text(environment.get_template(template).render(values), encoding="utf-8")
    return found


def _values(tables: Tables, about: About, drawn: tuple[Picture, ...], found: tuple[Outcome, ...]) -> dict[str, Any]:
    ended = finished(tables)
    sections = tuple(
        Section(
            condition=condition,
            summary=summary(for_condition(compared(ended), condition)),
            outcomes=tuple(outcome for outcome in found if outcome.condition == condition),
            pictures=tuple(picture for picture in drawn if picture.condition == condition),
            times=times(for_condition(compared(ended), condition)),
        )
        for condition in conditions(tables)
    )
    return {
        "about": about,
        "settings": flat(about.settings),
        "sections": sections,
        "claims": tuple(dict.fromkeys(outcome.claim for outcome in found)),
        "by_claim": {(outcome.claim, outcome.condition): outcome for outcome in found},
        "tuning": tables.tuning,
        "failures": failures(tables),
        "heuristic": ", ".join(method.title for method in heuristic_methods(tables)),
        "choices": about.choices,
        "finished": len(ended.cells),
        "remarks": remarks_on(tables, is_full=not about.scale_note, reproducible=about.reproducible),
        "parts": tuple(PARTS),
        "resolution": resolution_in_words(found),
        "counts": {verdict: sum(one.verdict is verdict for one in found) for verdict in Verdict},
        "figures_folder": FIGURES_FOLDER,
    }


def overview_cell(claim: Claim, outcome: Outcome | None) -> str:
    """The effect beside a verdict in the overview. Only claims with one comparison have one.

    An effect that is not decided is shown by its interval: its mean is not a fact.
    """
    if outcome is None or len(claim.comparisons) > 1:
        return ""
    found = outcome.findings[0]
    if outcome.verdict is Verdict.NOT_DECIDED and found.effect.low is not None:
        return f"{formatting.interval(found.effect)} {found.comparison.metric.unit}"
    return f"{formatting.signed(found.effect.mean)} {found.comparison.metric.unit}"


def _environment() -> Environment:
    # Only the page is HTML. In the README the `cell` filter escapes Markdown.
    environment = Environment(
        loader=PackageLoader("qidpfl_experiments.report"),
        autoescape=lambda name: bool(name) and ".html" in str(name),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": _markdown_cell,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "slug": lambda verdict: str(verdict).replace(" ", "-"),
    }
    environment.globals |= {"words": formatting, "overview_cell": overview_cell}
    return environment


def _markdown_cell(value: object) -> str:
    text = " ".join(str(value).split())
    for mark in ("\\", "|", "*", "_", "`", "[", "]"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")
