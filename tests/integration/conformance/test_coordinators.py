"""The kit as clients, and live coordinators: that of this project passes, and each seeded bug is found by its check."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_client.api import connect
from qidpfl_client.conformance.play_client import play_client
from qidpfl_client.conformance.report import CheckVerdict, ConformanceReport
from qidpfl_client.errors import Misconfigured
from support.coordinators import Coordinator, digest_header, running
from support.peers.altering_proxy import Bug, Exchanged, altering

pytestmark = pytest.mark.live

PROGRAM = Path(sys.executable).with_name("qidpfl-client")
CLIENTS = 4


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("conformance")) as live:
        yield live
        assert "0 violated" in live.audit()


def new_code(coordinator: Coordinator, name: str) -> str:
    """The code of a task for the kit. The audit does not accuse the kit's noise by chance."""
    _, code = coordinator.create_task(
        name, game={"horizon": 3}, rounds={"expected_clients": CLIENTS}, privacy={"audit_alpha": 1e-9}
    )
    return code


# --- coordinators with one bug ---------------------------------------------------------------------------------------


def json_bug(end: str, change: Callable[[Any], None], method: str = "GET") -> Bug:
    """A bug in the JSON of all successful answers of calls whose path has this end."""

    def alter(found: Exchanged) -> None:
        if found.method == method and found.path.partition("?")[0].endswith(end) and found.status in (200, 201):
            value = json.loads(found.body)
            change(value)
            found.body = json.dumps(value).encode()

    return Bug(answer=alter)


def header_bug(end: str, name: str) -> Bug:
    """A bug that leaves out a header."""

    def alter(found: Exchanged) -> None:
        if found.path.partition("?")[0].endswith(end):
            found.headers.pop(name, None)

    return Bug(answer=alter)


def status_bug(code: str, status: int, body: Any) -> Bug:
    """A bug that answers errors of this code with something else."""

    def alter(found: Exchanged) -> None:
        if found.status >= 400 and found.body and json.loads(found.body).get("code") == code:
            found.status, found.body = status, json.dumps(body).encode()

    return Bug(answer=alter)


def adds_updates() -> Bug:
    """The model of round 1 has the updates added; the announcement agrees with it."""
    models: dict[int, bytes] = {}

    def alter(found: Exchanged) -> None:
        path = found.path.partition("?")[0]
        if path.endswith("/models/0"):
            models[0] = found.body or models[0]
        if path.endswith("/models/1"):
            old, new = (np.frombuffer(data, "<f4") for data in (models[0], found.body))
            found.body = (2 * old - new).astype("<f4").tobytes()
            found.headers["content-digest"] = digest_header(found.body)

    return Bug(answer=alter)


def no_digest_needed() -> Bug:
    """Uploads without a digest are accepted: the proxy adds it."""

    def alter(method: str, path: str, headers: dict[str, str]) -> None:
        if path.endswith("/update"):
            headers.setdefault("content-digest", digest_header(b""))

    return Bug(request=alter)


def new_receipts() -> Bug:
    """A repeat gets a receipt of its own."""
    seen: list[int] = []

    def change(receipt: Any) -> None:
        seen.append(1)
        receipt["received_at"] = f"2026-01-01T00:00:00.{len(seen):06d}Z"

    return json_bug("/update", change, "PUT")


def no_problem_json(found: Exchanged) -> None:
    if found.status >= 400:
        found.headers["content-type"] = "application/json"


def offered(**changes: Callable[[Any], Any]) -> Bug:
    def change(news: Any) -> None:
        for name, alter in changes.items():
            if news.get("round"):
                news["round"][name] = alter(news["round"][name])

    return json_bug("/rounds/current", change)


def shifted_payment(result: Any) -> None:
    if result.get("state") == "settled":
        result["own"]["payment_micro"] += 1


def result_of(**changes: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        for name, alter in changes.items():
            value[name] = alter(value[name])

    return change


FOUND_BY: dict[str, tuple[Bug, str]] = {
    "other_total": (offered(total=lambda total: 1.1 * total), "round_1.total"),
    "other_clip_norm": (offered(clip_norm=lambda norm: 2 * norm), "round_1.announcement"),
    "other_model_digest": (offered(model_digest=lambda _: "0" * 64), "model.digest"),
    "forged_announcement": (offered(reward_micro=lambda micro: micro - 1), "signatures"),
    "no_etag": (header_bug("/models/0", "etag"), "model.etag"),
    "no_content_digest": (header_bug("/models/0", "content-digest"), "model.content_digest"),
    "no_request_id": (header_bug("", "x-request-id"), "headers.x-request-id"),
    "no_problem_json": (Bug(answer=no_problem_json), "errors.problem_json"),
    "unknown_code": (status_bug("budget_missing", 409, {"code": "no_budget_yet"}), "update.before_budget"),
    "closed_is_a_conflict": (status_bug("round_closed", 409, {"code": "round_closed"}), "closed_round.late"),
    "accepts_other_update": (status_bug("update_exists", 200, {}), "update.another"),
    "accepts_replay": (status_bug("update_replayed", 200, {}), "update.replayed"),
    "accepts_uneven_profile": (status_bug("histogram_mismatch", 200, {}), "profile.uneven"),
    "no_digest_needed": (no_digest_needed(), "update.no_digest"),
    "new_receipts": (new_receipts(), "update.repeated"),
    "forged_receipt": (
        json_bug("/budget", result_of(recorded_at=lambda _: "2026-01-01T00:00:00Z"), "PUT"),
        "signatures",
    ),
    "other_spec_digest": (
        json_bug(
            "", lambda value: value.update(spec_digest=hashlib.sha256(b"").hexdigest()) if "spec" in value else None
        ),
        "task.spec_digest",
    ),
    "other_payment": (json_bug("/rounds/1", shifted_payment), "round_1.payments"),
    "money_is_lost": (json_bug("/rounds/1", result_of(paid_micro=lambda micro: micro - 1)), "round_1.money_adds_up"),
    "adds_updates": (adds_updates(), "model.step"),
    "other_distance": (
        json_bug("/clients/me/selection", result_of(label_distance=lambda _: 0.5)),
        "selection.label_distance",
    ),
    "ledger_forgets": (
        json_bug("/clients/me/ledger", result_of(entries=lambda entries: entries[:1])),
        "ledger.entries",
    ),
    "other_epsilon": (json_bug("/clients/me/ledger", result_of(epsilon=lambda value: value / 2)), "ledger.epsilon"),
}
# The others run with `make test-long`.
QUICK = {
    "other_total",
    "no_etag",
    "accepts_other_update",
    "new_receipts",
    "forged_receipt",
    "other_payment",
    "adds_updates",
}


def judged(coordinator: Coordinator, name: str, code: str) -> ConformanceReport:
    with altering(coordinator.url, FOUND_BY[name][0]) as url, connect(url) as http:
        return play_client(http, codes=[code], clients=None, wait_s=30, say=lambda _: None)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, coordinator: Coordinator) -> dict[str, Future[ConformanceReport]]:
    """The reports of the bugs whose tests are selected."""
    items = [item for item in request.session.items if hasattr(item, "callspec")]
    selected = {item.callspec.params.get("name") for item in items if isinstance(item, pytest.Function)}
    codes = {name: new_code(coordinator, name.replace("_", "-")) for name in FOUND_BY if name in selected}
    with ThreadPoolExecutor(4) as pool:
        return {name: pool.submit(judged, coordinator, name, code) for name, code in codes.items()}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in FOUND_BY],
)
def test_a_seeded_bug_is_found(name: str, reports: dict[str, Future[ConformanceReport]]) -> None:
    report = reports[name].result()
    failing = {finding.check for finding in report.findings if finding.verdict is CheckVerdict.FAILS}
    assert FOUND_BY[name][1] in failing and not report.passed, [
        finding for finding in report.findings if finding.detail
    ]


def test_answers_that_are_no_objects_are_refused_in_one_line(coordinator: Coordinator) -> None:
    bug = Bug(answer=lambda found: setattr(found, "body", b"[]"))
    with altering(coordinator.url, bug) as url, connect(url) as http, pytest.raises(Misconfigured, match="has no spec"):
        play_client(http, codes=[new_code(coordinator, "no-object")], clients=None, wait_s=5, say=lambda _: None)


def conform(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, "conform", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_coordinator_of_this_project_passes(coordinator: Coordinator, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.write_text(new_code(coordinator, "passes"))
    ended = conform("--url", coordinator.url, "--code-file", code, "--json")
    report = json.loads(ended.stdout)
    other = [finding for finding in report["findings"] if finding["verdict"] != "holds"]
    assert ended.returncode == 0 and report["passed"], other
    assert [finding["check"] for finding in other] == ["headers.retry-after"]
    checks = {finding["check"] for finding in report["findings"]}
    assert {check for _, check in FOUND_BY.values()} <= checks


def test_the_kit_says_what_is_missing_in_one_line(coordinator: Coordinator, tmp_path: Path) -> None:
    nowhere = conform("--url", "http://127.0.0.1:9", "--code", "task.secret-of-the-task")
    assert nowhere.returncode == 1 and nowhere.stderr.startswith("qidpfl-client: GET /v1/tasks/task: ConnectError")
    wrong = conform("--url", coordinator.url, "--code", "0123456789abcdef.secret-of-the-task")
    assert wrong.returncode == 1 and "the task cannot be read with this code" in wrong.stderr
    assert wrong.stderr.count("\n") == nowhere.stderr.count("\n") == 1
