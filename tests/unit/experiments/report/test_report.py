"""The report is complete, self-contained and marks every limitation."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qidpfl_experiments.analysis.statistics import Estimate, estimate
from qidpfl_experiments.methods import BY_NAME
from qidpfl_experiments.report import formatting
from qidpfl_experiments.report.about import About, flat
from qidpfl_experiments.report.report import write_report
from qidpfl_experiments.results.tables import Guarantee, Tables, TuningRow
from support.synthetic_results import results

pytestmark = pytest.mark.slow

ABOUT = About(
    title="MNIST <at> full scale",
    command="qidpfl-experiments run --dataset mnist --seeds 3",
    settings={"game": {"discount": 0.95}, "seeds": 3},
    versions={"torch": "2.0"},
)


class Page(HTMLParser):
    """What a browser would follow, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.sources += [given["src"]] if "src" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.names |= {given["id"]} if "id" in given else set()
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tables() -> Tables:
    made = results(methods=("fedavg", "fedavg-select", "fedavg-dp", "qi-dpfl", "my-rule"), seeds=3)
    broken = replace(made.cells[-1], state="failed", reason="client 3: <broken> | pipe", accuracy=None)
    return replace(made, cells=(*made.cells[:-1], broken))


@pytest.fixture(scope="module")
def folder(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("results")
    write_report(written, tables, ABOUT)
    return written


def test_the_page_is_self_contained(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert not page.open
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "http" not in re.sub(r"base64,[^\"]+", "", text).replace("HTTP", "")
    assert "url(" not in text


def test_the_links_of_the_page_have_targets(folder: Path) -> None:
    page = Page((folder / "report.html").read_text())
    assert {"mnist-iid", "mnist-dirichlet", "claims", "remarks"} <= page.names
    assert all(link.removeprefix("#") in page.names for link in page.links)


def test_the_links_of_the_readme_lead_to_files(folder: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (folder / "README.md").read_text())
    assert {"report.html", "claims.csv"} <= set(links)
    assert all((folder / link).exists() for link in links)
    assert {link for link in links if link.endswith(".png")} == {
        f"figures/{path.name}" for path in (folder / "figures").iterdir()
    }


@pytest.mark.parametrize("name", ["report.html", "README.md"])
def test_the_report_shows_command_settings_and_verdicts(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    for told in (ABOUT.command, "game.discount", "0.95", "does not hold", "trivially true", "my-rule is more accurate"):
        assert told in text, told


@pytest.mark.parametrize(
    ("name", "told"),
    [("report.html", "client 3: &lt;broken&gt; | pipe"), ("README.md", r"client 3: &lt;broken> \| pipe")],
)
def test_failed_cells_are_listed_and_escaped(folder: Path, name: str, told: str) -> None:
    text = (folder / name).read_text()
    assert told in text
    assert re.search(r"1 (run )?did not finish", text)


@pytest.mark.parametrize("name", ["report.html", "README.md"])
def test_failed_runs_of_sweeps_are_listed(tmp_path: Path, name: str) -> None:
    made = results(methods=("qi-dpfl",), partitions=("iid",), seeds=1)
    failed = replace(made.calibration[0], total=None, accuracy=None, failure="the fleet was killed")
    rate = TuningRow(dataset="mnist", partition="iid", learning_rate=8.0, accuracy=None, failure="it diverged")
    write_report(tmp_path, replace(made, calibration=(failed, *made.calibration[1:]), tuning=(rate,)), ABOUT)
    text = (tmp_path / name).read_text()
    for told in (
        "calibration, reward 5",
        "the fleet was killed",
        "tuning, learning rate 8",
        "it diverged",
        "1 more run failed",
    ):
        assert told in text, told


@pytest.mark.parametrize("name", ["report.html", "README.md"])
def test_heuristic_noise_has_a_warning_and_a_mark_at_every_epsilon(folder: Path, tmp_path: Path, name: str) -> None:
    made = results(methods=("fedavg", "qi-dpfl"), partitions=("iid",), seeds=2)
    heuristic = replace(
        made,
        cells=tuple(
            replace(row, guarantee=Guarantee.HEURISTIC) if row.guarantee is Guarantee.PROVEN else row
            for row in made.cells
        ),
    )
    write_report(tmp_path, heuristic, ABOUT)
    text = (tmp_path / name).read_text()
    assert "Heuristic noise, no privacy guarantee:" in text
    assert re.search(r"2\.00 ± 0.{0,25}heuristic", text)
    assert "the proven part is: QI-DPFL" in text and "No guarantee: FedAvg." in text
    assert "euristic" not in (folder / name).read_text()


def test_the_report_says_that_noise_from_a_seed_protects_nothing(folder: Path, tmp_path: Path) -> None:
    few = results(methods=("qi-dpfl",), partitions=("iid",), seeds=2)
    write_report(tmp_path, few, replace(ABOUT, reproducible=True))
    assert "protects nothing" in (tmp_path / "README.md").read_text()
    assert "protects nothing" not in (folder / "README.md").read_text()


def test_every_row_of_a_table_has_as_many_cells_as_its_head(folder: Path) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(blocks) >= 6
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}) == 1, block


def test_a_smaller_scale_has_a_warning_and_the_full_one_has_none(folder: Path, tmp_path: Path) -> None:
    write_report(tmp_path, Tables(), replace(ABOUT, scale_note="12 of 30 rounds"))
    for name in ("report.html", "README.md"):
        assert "Not at full scale" in (tmp_path / name).read_text()
        assert "12 of 30 rounds" in (tmp_path / name).read_text()
        assert "Not at full scale" not in (folder / name).read_text()


def test_all_learning_rates_are_listed_including_failed_ones(folder: Path, tmp_path: Path) -> None:
    tried = {0.5: 0.8125, 3.0: None}
    rows = [
        TuningRow(dataset="mnist", partition="iid", learning_rate=rate, accuracy=found) for rate, found in tried.items()
    ]
    write_report(tmp_path, Tables(tuning=tuple(rows)), ABOUT)
    text = (tmp_path / "README.md").read_text()
    assert "| mnist | iid | 0.5 | 81.25 |" in text and "| mnist | iid | 3 | failed |" in text
    page = (tmp_path / "report.html").read_text()
    assert '<td class="n">81.25</td>' in page and '<td class="n">failed</td>' in page
    assert "Learning rates" not in (folder / "README.md").read_text() + (folder / "report.html").read_text()


def test_a_report_is_reproducible_and_removes_old_figures(tmp_path: Path) -> None:
    few = results(methods=("qi-dpfl",), partitions=("iid",), seeds=2)
    for name in ("one", "other"):
        (tmp_path / name / "figures").mkdir(parents=True)
        (tmp_path / name / "figures" / f"mnist-{name}.png").write_bytes(b"old")
        write_report(tmp_path / name, few, ABOUT)
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.*")} for name in ("one", "other")
    )
    assert one == other
    assert "mnist-iid-calibration.png" in one


@pytest.mark.parametrize(
    "few",
    [
        Tables(),
        results(methods=("fedavg",), partitions=("iid",), seeds=1),
        results(methods=tuple(BY_NAME), partitions=("quality-mix",), seeds=1),
    ],
    ids=["nothing", "one method", "one seed"],
)
def test_incomplete_results_give_a_report(few: Tables, tmp_path: Path) -> None:
    write_report(tmp_path, few, ABOUT)
    text = (tmp_path / "report.html").read_text()
    assert not Page(text).open
    assert ("There is one seed" in text) == bool(few.cells)
    assert ("not in the paper" in text) == any(row.partition == "quality-mix" for row in few.cells)


def test_nested_settings_get_dotted_names() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": True}) == {"a.b.c": "1", "d": "True"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (1234.5, "1,234"),
        (45.678, "45.7"),
        (0.0512, "0.0512"),
        (-2.5, "−2.50"),
        (2e-5, "2.00e−05"),
    ],
)
def test_numbers_have_few_digits(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [([0.0, 0.0], "0"), ([250.0, 250.0], "250 ± 0"), ([118.0, 118.02], "118.0 ± 0.1"), ([4.0], "4.00"), ([], "–")],
)
def test_means_are_given_with_half_the_width_of_their_interval(values: list[float], text: str) -> None:
    assert formatting.mean(estimate(values)) == text


def test_differences_always_have_a_sign() -> None:
    found = Estimate(mean=0.5, low=-0.25, high=1.25, n=3)
    assert formatting.signed(found.mean) == "+0.50"
    assert formatting.interval(found) == "−0.25 … +1.25"
    assert formatting.signed(0.0) == "0.00"
