"""The dashboard: the time to its first chart on a large task, and what an open page costs the coordinator.

    python benchmarks/dashboard.py                       # both; needs Chromium
    python benchmarks/dashboard.py --clients 1000 --rounds 500 --demo-rounds 40

The large task is made of synthetic rows in a store. The first page of each kind is that after a start of the
coordinator, in a browser that is already open. The cost is that of a demo with ten clients that train: the processor
time of the coordinator with and without open pages, in turn.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from qidpfl.demo.processes import DemoProcesses  # noqa: E402
from qidpfl.demo.scenarios import SCENARIOS  # noqa: E402
from qidpfl_client.api import AdminApi, connect  # noqa: E402
from qidpfl_experiments.testbed.process import Service, free_port  # noqa: E402
from qidpfl_server.clock import SECOND  # noqa: E402
from qidpfl_server.ops.open_store import opened_store  # noqa: E402
from qidpfl_server.service.tasks import create_task, save_initial_model, task_spec  # noqa: E402
from qidpfl_server.settings import Settings  # noqa: E402
from qidpfl_server.store import schema  # noqa: E402
from qidpfl_server.store.transaction import Transaction  # noqa: E402
from support.browsers import missing_browser, opened_browser  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_START = 1_800_000_000 * SECOND
_REWARD = 20_000_000
# Notes when the first chart has been painted, from the begin of the navigation.
_WATCH = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".figure svg, .figure canvas")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.chartMs = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--demo-rounds", type=int, default=60)
    parser.add_argument("--pages", type=int, default=6)
    options = parser.parse_args()
    if (reason := missing_browser()) is not None:
        sys.exit(reason)
    with opened_browser() as browser:
        first_charts(browser, options.clients, options.rounds, options.runs)
        cost(browser, options.demo_rounds, options.runs, options.pages)


# --- a large task ----------------------------------------------------------------------------------------------------


def first_charts(browser: "Browser", clients: int, rounds: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        task_id = stored(Path(name), clients, rounds)
        for page in ("market", "clients", "privacy"):
            with served(Path(name)) as (url, token):
                cold, *warm = (first_chart(browser, url, token, task_id, page) for _ in range(runs + 1))
            said = ", ".join(f"{one:.2f}" for one in warm)
            print(
                f"{page}: first chart of {clients} clients x {rounds} rounds after {statistics.median(warm):.2f} s"
                f" ({said}), {cold:.2f} s after a start"
            )


def first_chart(browser: "Browser", url: str, token: str, task_id: str, name: str) -> float:
    """The seconds from the address to the first chart on the screen, in a new context."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto("about:blank")
    page.add_init_script(_WATCH)
    page.goto(f"{url}/dashboard#token={token}&/t/{task_id}/{name}")
    shown = page.wait_for_selector("html[data-chart-ms]", timeout=120_000)
    took = float((shown and shown.get_attribute("data-chart-ms")) or "nan") / 1000
    context.close()
    return took


def stored(folder: Path, clients: int, rounds: int) -> str:
    """A state folder with the large task; returns the task."""
    with opened_store(Settings(state_dir=folder), create=True) as store:
        spec = task_spec("digits", {"game": {"horizon": 1000}})
        model = save_initial_model(store.blobs, spec)
        made = store.write(
            lambda tx: create_task(tx, name="large", preset_name="digits", spec=spec, model=model, now=_START)
        )
        task_id = made.task.task_id
        store.write(lambda tx: fill(tx, task_id, clients, rounds))
    return task_id


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """A coordinator with the large task: its address and the viewer's token."""
    port = free_port()
    command = ["qidpfl_server", "serve", "--port", str(port), "--state-dir", str(folder)]
    coordinator = Service("the coordinator", command, folder / "log")
    try:
        coordinator.wait_until_served()
        yield f"http://127.0.0.1:{port}", (folder / "viewer.token").read_text().strip()
    finally:
        coordinator.stop()


def fill(tx: Transaction, task_id: str, clients: int, rounds: int) -> None:
    """Write the rows of settled rounds. They are not in the chain: nothing here audits them."""
    ids = [f"c{ordinal:06d}" for ordinal in range(clients)]
    connection = tx.connection
    connection.execute(
        insert(schema.clients),
        [
            {
                "client_id": client_id,
                "task_id": task_id,
                "ordinal": ordinal,
                "state": "selected",
                "key_hash": client_id,
                "token_hash": client_id,
                "enrolled_at": _START,
                "label_counts": "[11, 11, 11, 11, 11, 11, 11, 11, 11, 11]",
                "size": 110,
                "privacy_value": 1.0,
                "histogram_rho": 0.1,
                "lifetime_rho": 100.0,
                "label_distance": 0.2,
            }
            for ordinal, client_id in enumerate(ids)
        ],
    )
    for number in range(1, rounds + 1):
        opened = _START + number * 60 * SECOND
        key = {"task_id": task_id, "round_number": number}
        connection.execute(insert(schema.rounds), [round_row(key, number, opened, clients)])
        rows = [key | {"client_id": client_id} for client_id in ids]
        rho = [0.01 + 0.0001 * ((number + ordinal) % 50) for ordinal in range(clients)]
        answer = {"state": "declared", "recorded_at": opened, "attempt": 1}
        sent = {"digest": "0" * 64, "byte_length": 2600, "squared_norm": 1.0, "received_at": opened, "accepted": True}
        paid = {"amount_micro": _REWARD // clients, "escrow_micro": 0}
        connection.execute(
            insert(schema.invitations), [row | {"standing": "invited", "expected_rho": 0.01} for row in rows]
        )
        connection.execute(
            insert(schema.budgets), [row | answer | {"rho": one} for row, one in zip(rows, rho, strict=True)]
        )
        connection.execute(insert(schema.updates), [row | sent for row in rows])
        connection.execute(insert(schema.payments), [row | paid for row in rows])
    ended = _START + rounds * 60 * SECOND
    connection.execute(schema.tasks.update().values(state="finished", reason="horizon_reached", ended_at=ended))
    connection.execute(insert(schema.events), [{"task_id": task_id, "at": ended, "kind": "task.finished"}])


def round_row(key: dict[str, Any], number: int, opened: int, clients: int) -> dict[str, Any]:
    return key | {
        "attempt": 1,
        "state": "settled",
        "reward_micro": _REWARD,
        "total": 0.02 * clients,
        "min_updates": 2,
        "base_version": number - 1,
        "declare_by": opened + SECOND,
        "deliver_by": opened + 2 * SECOND,
        "kept_micro": _REWARD - clients * (_REWARD // clients),
        "declared_total": 0.0125 * clients,
        "accuracy": 1 - 0.9 / (1 + number / 40),
        "loss": 2.0 / (1 + number / 40),
        "opened_at": opened,
        "settled_at": opened + SECOND,
        "settlement_s": 0.1,
        "evaluation_s": 0.1,
        "paid_micro": clients * (_REWARD // clients),
        "escrow_micro": 0,
        "invited": clients,
        "updates": clients,
    }


# --- the cost of an open page ----------------------------------------------------------------------------------------


def cost(browser: "Browser", rounds: int, runs: int, pages: int) -> None:
    """One page costs less than two runs differ. Several pages at once cost several times as much, and show it."""
    found: dict[int, list[tuple[float, float]]] = {0: [], pages: []}
    for _ in range(runs):
        for opened in found:
            found[opened].append(demo(browser, rounds, pages=opened))
    shares = []
    for number, ((without, _), (beside, took)) in enumerate(zip(found[0], found[pages], strict=True), start=1):
        each = (beside - without) / pages
        shares.append(each / without)
        print(
            f"pair {number}: coordinator {without:.2f} s of processor time, {beside:.2f} s with {pages} pages:"
            f" {each:.3f} s for each, {each / without:.1%} of its own, {each / took:.2%} of the time"
        )
    print(
        f"a page costs the coordinator {statistics.median(shares):.1%} of its processor time (median of {runs} pairs)"
    )


def demo(browser: "Browser", rounds: int, *, pages: int) -> tuple[float, float]:
    """The processor time of the coordinator during the rounds, and the seconds that they took."""
    with (
        tempfile.TemporaryDirectory() as folder,
        DemoProcesses(Path(folder), SCENARIOS["digits"], rounds=rounds, unsafe_seed=3) as testbed,
        connect(testbed.url) as http,
        ExitStack() as opened,
    ):
        api = AdminApi(http, token=testbed.admin_token())
        (task,) = api.tasks()
        while api.task(task.task_id).settled_rounds < 1:
            time.sleep(0.2)
        used, start = processor_s(testbed.coordinator.process.pid), time.perf_counter()
        token = (testbed.state_dir / "viewer.token").read_text().strip()
        for _ in range(pages):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            opened.callback(context.close)
            context.new_page().goto(f"{testbed.url}/dashboard#token={token}&/t/{task.task_id}/market")
        while not api.task(task.task_id).state.ended:
            time.sleep(0.5)
        return processor_s(testbed.coordinator.process.pid) - used, time.perf_counter() - start


def processor_s(pid: int) -> float:
    """The processor time so far of a process and its children: a service runs below a process that guards it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_s(int(child)) for child in children)


if __name__ == "__main__":
    main()
