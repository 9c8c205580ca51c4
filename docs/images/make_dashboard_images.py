"""Make the pictures of docs/dashboard.md and docs/experiments.md: a real run of ten clients, real results, a browser.

.venv/bin/python docs/images/make_dashboard_images.py
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from qidpfl.demo.processes import DemoProcesses  # noqa: E402
from qidpfl.demo.scenarios import SCENARIOS  # noqa: E402
from qidpfl_client.api import AdminApi, connect  # noqa: E402
from qidpfl_experiments.view.content import as_json, page_content  # noqa: E402
from qidpfl_experiments.view.server import PageServer  # noqa: E402
from support.browsers import opened_browser  # noqa: E402

PICTURES = {"market": "light", "clients": "light", "privacy": "dark", "selection": "light"}
SIZE = {"width": 1180, "height": 760}
ROUNDS = 20
RESULTS = ROOT / "docs/results/mnist-full"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scenario = SCENARIOS["digits"]
        with (
            DemoProcesses(Path(folder), scenario, rounds=ROUNDS, unsafe_seed=3) as testbed,
            connect(testbed.url) as http,
        ):
            api = AdminApi(http, token=testbed.admin_token())
            (task,) = api.tasks()
            while api.task(task.task_id).settled_rounds < ROUNDS // 2:
                time.sleep(0.2)
            take(testbed, task.task_id)
    take_results()


def take(testbed: DemoProcesses, task_id: str) -> None:
    """Take a picture of each page."""
    token = (testbed.state_dir / "viewer.token").read_text().strip()
    with opened_browser() as browser:
        for name, theme in PICTURES.items():
            context = browser.new_context(viewport=SIZE, color_scheme=theme)  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{testbed.url}/dashboard#token={token}&/t/{task_id}/{name}")
            page.wait_for_selector(".figure svg, .figure canvas")
            page.wait_for_timeout(300)
            page.screenshot(path=Path(__file__).parent / f"dashboard-{name}.png")
            context.close()


def take_results() -> None:
    """Take a picture of the page of results."""
    with PageServer(0, lambda: as_json(page_content(RESULTS)), ()) as server, opened_browser() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_context(viewport=SIZE).new_page()  # type: ignore[arg-type]
        page.goto(f"{server.url}#/mnist-dirichlet")
        page.wait_for_selector(".figure svg")
        # Below the sticky header.
        page.evaluate("scrollTo(0, document.querySelectorAll('.figure')[0].closest('section').offsetTop - 190)")
        page.screenshot(path=Path(__file__).parent / "results-view.png")
        server.shutdown()


if __name__ == "__main__":
    main()
