"""`qidpfl-experiments view`: the results of a folder in a real browser, and its errors on the terminal."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from qidpfl_experiments.results.tables import CellRow, Tables, read_tables, write_tables
from support import synthetic_results
from support.browsers import missing_browser, opened_browser
from support.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.live
in_a_browser = pytest.mark.skipif(bool(missing_browser()), reason=missing_browser() or "")

RESULTS = Path(__file__).parents[3] / "docs/results/mnist-full"
HOSTILE = '<img src=x onerror="globalThis.hacked=1">'


class Viewer:
    """The command as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "qidpfl_experiments", "view", str(folder), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.url = self.said.partition(": ")[2].partition(" (")[0]

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """End it with a signal: its exit status and what else it said."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out + err


def refused(folder: Path, *arguments: str) -> str:
    """The one line with which the command refuses a folder."""
    command = [sys.executable, "-m", "qidpfl_experiments", "view", str(folder), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stdout == "" and ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    viewer = Viewer(RESULTS)
    yield viewer
    viewer.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Any]:
    opened: list[Visit] = []

    def start(url: str, **options: Any) -> Visit:
        opened.append(Visit(browser, url, **options))
        opened[-1].page.wait_for_selector("main .card, main .error")
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()


def folder_of(path: Path, cells: tuple[CellRow, ...] = ()) -> Path:
    """A results folder with the configuration of real results and these cells."""
    path.mkdir()
    shutil.copy(RESULTS / "config.json", path)
    if cells:
        write_tables(path, Tables(cells=cells))
    return path


@in_a_browser
def test_every_chart_has_a_table_and_a_csv_with_the_same_numbers(viewer: Viewer, visit: Any) -> None:
    seen = visit(f"{viewer.url}#/mnist-dirichlet")
    cards = list(seen.charts())
    assert len(cards) == 10
    for card in cards:
        assert card.locator("svg").count() == 1, card.inner_text()
        card.locator("summary").click()
        lines = seen.saved(card)
        assert len(lines) - 1 == card.locator("tbody tr").count() > 0
        assert len(lines[0]) == card.locator("thead th").count()
    assert seen.said == []


@in_a_browser
def test_the_numbers_are_those_of_the_tables(viewer: Viewer, visit: Any) -> None:
    cells = [
        cell.accuracy or 0.0
        for cell in read_tables(RESULTS).cells
        if (cell.partition, cell.method) == ("dirichlet", "qi-dpfl")
    ]
    seen = visit(f"{viewer.url}#/mnist-dirichlet")
    card = seen.page.locator("section.card", has=seen.page.get_by_role("heading", name="Accuracy after the last round"))
    (row,) = [line for line in seen.saved(card) if line[0] == "QI-DPFL"]
    assert float(row[1]) == pytest.approx(sum(cells) / len(cells), abs=1e-12)
    assert float(row[2]) < float(row[1]) < float(row[3]) and row[4] == str(len(cells))


@in_a_browser
def test_claims_have_their_verdicts_and_effects_with_intervals(viewer: Viewer, visit: Any) -> None:
    stored = (RESULTS / "claims.csv").read_text().splitlines()[1:]
    seen = visit(viewer.url)
    table = seen.page.get_by_role("region", name="Claims and verdicts")
    assert table.locator("tbody tr").count() == len({line.split(",")[0] for line in stored})
    shown = table.locator(".verdict").all_inner_texts()
    assert len(shown) == len({(line.split(",")[0], *_places(line)) for line in stored})
    assert set(shown) <= {"holds", "does not hold", "trivially true", "not decided"}
    card = seen.page.locator("section.card", has_text="Effects on accuracy: mnist, dirichlet")
    effects = {line[1]: line for line in seen.saved(card)}
    assert any(float(line[3]) < float(line[2]) < float(line[4]) for line in list(effects.values())[1:])


def _places(line: str) -> tuple[str, ...]:
    return tuple(part for part in ("iid", "dirichlet", "quality-mix") if f"mnist,{part}," in line)


@in_a_browser
def test_the_reader_chooses_methods_with_the_keyboard(viewer: Viewer, visit: Any) -> None:
    seen = visit(f"{viewer.url}#/mnist-iid")
    table = seen.page.get_by_role("region", name="Methods side by side")
    before = table.locator("tbody tr").count()
    box = seen.page.get_by_role("checkbox", name="Max-select")
    box.focus()
    seen.page.keyboard.press("Space")
    assert table.locator("tbody tr").count() == before - 1 and box.evaluate("one => one === document.activeElement")
    seen.page.get_by_role("button", name="None").press("Enter")
    assert "No method is chosen." in seen.text()
    seen.page.get_by_role("button", name="Paper").press("Enter")
    assert table.locator("tbody tr").count() == 8
    seen.page.get_by_role("link", name="claims").press("Enter")
    seen.page.wait_for_selector('nav a[aria-current="page"]:text-is("claims")')
    summary = seen.page.locator("summary").first
    summary.focus()
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("details[open] table")


@in_a_browser
@pytest.mark.parametrize(("theme", "width"), [("light", 360), ("dark", 1920)])
def test_the_page_is_accessible_and_fits_the_screen(viewer: Viewer, visit: Any, theme: str, width: int) -> None:
    seen = visit(viewer.url, color_scheme=theme, viewport={"width": width, "height": 900})
    for name in ("claims", "mnist-quality-mix", "about"):
        seen.page.goto(f"{viewer.url}#/{name}")
        seen.page.wait_for_selector('nav a[aria-current="page"]')
        seen.open_tables()
        assert seen.serious_findings() == [], name
        assert seen.fits(), f"{name} is too wide"
    assert seen.page.evaluate("document.documentElement.dataset.theme") == theme
    assert seen.said == []


@in_a_browser
def test_a_running_experiment_is_read_again_and_hostile_text_stays_text(tmp_path: Path, visit: Any) -> None:
    failed = synthetic_results.cell(HOSTILE, 0, state="failed")
    folder = folder_of(tmp_path / "some", cells=(failed, *synthetic_results.cells({"fedavg": [80.0]})))
    viewer = Viewer(folder)
    try:
        seen = visit(f"{viewer.url}#/about")
        assert HOSTILE in seen.text() and seen.page.query_selector("main img") is None
        seen.page.goto(f"{viewer.url}#/mnist-dirichlet")
        seen.page.wait_for_selector("h2:text-is('Methods side by side')")
        table = seen.page.get_by_role("region", name="Methods side by side")
        assert table.locator("tbody tr").count() == 1
        # One seed: no interval. No rounds: the card says so.
        assert "Nothing to show yet." in seen.text()
        write_tables(folder, Tables(cells=synthetic_results.cells({"fedavg": [80.0], "qi-dpfl": [81.0]})))
        seen.page.reload()
        table.locator("tbody tr").nth(1).wait_for()
        (folder / "cells.csv").write_text("nonsense\n1,2\n")
        seen.page.reload()
        seen.page.wait_for_selector("text=cells.csv")
        assert seen.page.evaluate("globalThis.hacked") is None
    finally:
        assert viewer.stop() == (0, "")
    seen.page.get_by_role("button", name="Try again").click()
    seen.page.wait_for_selector("text=does not answer any more")


def test_the_server_answers_this_machine_only_and_serves_no_other_file(viewer: Viewer) -> None:
    with httpx.Client(base_url=viewer.url, timeout=60) as http:
        check_answers(http)
    assert viewer.url.startswith("http://127.0.0.1:")


def check_answers(http: httpx.Client) -> None:
    answer = http.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and answer.headers["x-frame-options"] == "DENY"
    assert http.get("/", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert http.get("/", headers={"Host": "evil.example"}).status_code == 421
    for name in ("config.json", "..%2Fconfig.json", "web/__init__.py", "../../server.py"):
        assert http.get(f"/{name}").status_code == 404
    assert http.post("/").status_code == 501
    assert http.head("/results.json").content == b""
    assert json.loads(http.get("/results.json").content)["folder"] == RESULTS.name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_word(number: int) -> None:
    assert Viewer(RESULTS).stop(number) == (0, "")


def test_a_wrong_folder_is_refused_in_one_line(tmp_path: Path, viewer: Viewer) -> None:
    assert "is not a folder" in refused(tmp_path / "missing")
    assert "holds no results" in refused(tmp_path)
    assert "has no finished cells yet; run some first" in refused(folder_of(tmp_path / "empty"))
    damaged = folder_of(tmp_path / "damaged", cells=synthetic_results.cells({"fedavg": [80.0]}))
    (damaged / "cells.csv").write_text("dataset,partition\nmnist,iid\n")
    assert "cells.csv" in refused(damaged)
    (damaged / "config.json").write_text("{")
    assert "config.json" in refused(damaged)
    port = viewer.url.rstrip("/").rpartition(":")[2]
    assert "leave out --port for a free one" in refused(RESULTS, "--port", port)
