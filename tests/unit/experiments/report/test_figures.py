"""Figures: all available data is drawn, reproducibly, without side effects on matplotlib."""

import io
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from qidpfl_experiments.analysis.conditions import Condition, for_condition
from qidpfl_experiments.methods import BY_NAME, METHODS
from qidpfl_experiments.report.figures import FIGURES, Picture, pictures
from qidpfl_experiments.report.figures.paper import accuracy_of_models, accuracy_of_strategies, calibration
from qidpfl_experiments.report.figures.style import Drawing, looks, rendered
from qidpfl_experiments.results.tables import Tables
from support.synthetic_results import results

pytestmark = pytest.mark.slow

CONDITION = Condition(dataset="mnist", partition="dirichlet")
LOOKS = looks(["my-rule"])


@pytest.fixture(scope="module")
def everything() -> Tables:
    return results(methods=(*BY_NAME, "my-rule"), partitions=("dirichlet",), seeds=3)


@pytest.fixture(scope="module")
def drawn(everything: Tables) -> tuple[Picture, ...]:
    return pictures(everything)


def drawing(made: Drawing | None) -> Drawing:
    assert made is not None
    return made


def curves(figure: Figure) -> dict[str, np.ndarray]:
    """The lines of the left part, by colour and dash."""
    return {
        f"{line.get_color()} {line.get_linestyle()}": np.asarray(line.get_ydata())
        for line in figure.axes[0].get_lines()
    }


def test_every_figure_is_a_small_file(drawn: tuple[Picture, ...]) -> None:
    assert len(drawn) == len(FIGURES)
    assert len({picture.file_name for picture in drawn}) == len(drawn)
    for picture in drawn:
        image = Image.open(io.BytesIO(picture.png))
        assert image.format == "PNG"
        assert min(image.size) > 150
        assert not image.info.get("Software")
        assert 5_000 < len(picture.png) < 120_000, picture.name


def test_figures_are_the_same_bytes_in_every_run(everything: Tables, drawn: tuple[Picture, ...]) -> None:
    assert pictures(everything) == drawn


def test_matplotlib_settings_have_no_effect_and_stay(everything: Tables, drawn: tuple[Picture, ...]) -> None:
    made = drawing(accuracy_of_models(everything, LOOKS))
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        assert rendered(made, CONDITION) == drawn[0].png
        assert dict(matplotlib.rcParams) == before


def test_a_figure_includes_the_scale_note(drawn: tuple[Picture, ...], everything: Tables) -> None:
    figure = Figure()
    made = Drawing(name="empty", title="Nothing", caption="", draw=lambda: figure)
    for note, title in (
        ("two clients", "Nothing (mnist, dirichlet)\nnot at full scale: two clients"),
        ("", "Nothing (mnist, dirichlet)"),
    ):
        rendered(made, CONDITION, scale_note=note)
        assert figure.get_suptitle() == title
    smaller = pictures(everything, scale_note="two clients")
    assert all(one.png != other.png for one, other in zip(smaller, drawn, strict=True))


def test_no_two_methods_look_alike() -> None:
    names = {method.name for method in METHODS}
    shown = looks(["one", "two", "three", "four", "five", "six", *names]).values()
    assert len({(look.colour, look.line, look.marker) for look in shown}) == len(names) + 6


def test_a_method_looks_the_same_in_all_figures() -> None:
    assert looks([])["qi-dpfl"] == LOOKS["qi-dpfl"]


def test_lines_are_the_means_of_the_seeds(everything: Tables) -> None:
    made = drawing(accuracy_of_strategies(everything, LOOKS))
    look = LOOKS["qi-dpfl"]
    rounds = [row for row in everything.rounds if row.method == "qi-dpfl" and row.round_number == 12]
    mean = sum(row.accuracy or 0 for row in rounds) / len(rounds)
    assert curves(made.draw())[f"{look.colour} {look.line}"][-1] == pytest.approx(100 * mean)


def test_a_custom_method_is_shown_with_the_strategies(everything: Tables) -> None:
    figure = drawing(accuracy_of_strategies(everything, LOOKS)).draw()
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names[-1] == "my-rule"
    assert "FedAvg" not in names


def test_a_curve_is_drawn_only_where_it_was_calibrated(everything: Tables) -> None:
    figure = drawing(calibration(everything, LOOKS)).draw()
    (line,) = figure.axes[0].get_lines()
    totals = np.asarray(line.get_xdata())
    assert (totals.min(), totals.max()) == pytest.approx((0.005, 0.08))


def test_runs_that_determine_no_curve_are_shown_without_one(everything: Tables) -> None:
    fit = replace(everything.fits[0], status="not_identifiable", ceiling=None, drop=None, rate=None, reward_min=None)
    made = drawing(calibration(replace(everything, fits=(fit,)), LOOKS))
    assert not made.draw().axes[0].get_lines()
    assert "not_identifiable" in made.caption


@pytest.mark.parametrize("methods", [("fedavg", "fedavg-select"), ("qi-dpfl",), ("my-rule",)])
def test_few_methods_and_one_seed_give_the_possible_figures(methods: tuple[str, ...]) -> None:
    tables = results(methods=methods, partitions=("dirichlet",), seeds=1)
    names = {picture.name for picture in pictures(tables)}
    assert {"calibration", "wall-clock"} <= names
    assert ("privacy-ledgers" in names) == (methods[0] in ("qi-dpfl", "my-rule"))
    assert ("accuracy-money" in names) == (methods[0] in ("qi-dpfl", "my-rule"))


def test_the_caption_says_that_one_seed_has_no_bands() -> None:
    tables = results(methods=("qi-dpfl",), partitions=("dirichlet",), seeds=1)
    assert "no bands" in drawing(accuracy_of_strategies(for_condition(tables, CONDITION), LOOKS)).caption


def test_empty_tables_give_no_figures() -> None:
    assert pictures(Tables()) == ()


def test_failed_cells_are_in_no_figure(everything: Tables) -> None:
    broken = tuple(replace(row, state="failed") for row in everything.cells)
    assert {picture.name for picture in pictures(replace(everything, cells=broken))} == {"calibration"}
