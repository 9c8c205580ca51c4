"""Make the pictures of docs/dashboard.md from a real run: ten clients that train on digits, and a real browser.

.venv/bin/python docs/images/make_dashboard_images.py
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from qidpfl.demo.processes import DemoProcesses  # noqa: E402
from qidpfl.demo.scenarios import SCENARIOS  # noqa: E402
from qidpfl_client.api import AdminApi, connect  # noqa: E402
from support.browsers import opened_browser  # noqa: E402

PICTURES = {"market": "light", "clients": "light", "privacy": "dark", "selection": "light"}
SIZE = {"width": 1180, "height": 760}
ROUNDS = 20


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scenario = SCENARIOS["digits"]
        with (
            DemoProcesses(Path(folder), scenario, rounds=ROUNDS, unsafe_seed=3) as testbed,
            connect(testbed.url) as http,
        ):
            api = AdminApi(http, token=testbed.admin_token())
            (task,) = api.tasks()
            while api.task(task.task_id).settled_rounds < ROUNDS - 6:
                time.sleep(0.2)
            take(testbed, task.task_id)


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


if __name__ == "__main__":
    main()
