"""Who may do what, route by route; and that secrets stay secret."""

import json
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from qidpfl_server.api.app import create_app
from qidpfl_server.clock import SystemClock
from qidpfl_server.ops.tokens import load_secrets
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.scheduler import Scheduler
from qidpfl_server.settings import Settings
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from support.commands import ServerProcess
from support.coordinators import ScriptedClient, running

pytestmark = pytest.mark.live

WINDOWS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}
ROLES = (
    *("nobody", "wrong token", "revoked token", "enrolment code", "client", "client elsewhere", "viewer", "admin"),
    *("revoked operator", "expired operator", "viewer of task", "admin of task", "admin elsewhere", "second admin"),
)
PROFILE = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1}
TASK = "/v1/tasks/{task_id}"

OPEN = (200,) * 14
GLOBAL_ADMIN = (401, 401, 401, 403, 403, 403, 403, 200, 401, 401, 403, 403, 403, 200)
ADMIN = (401, 401, 401, 403, 403, 403, 403, 200, 401, 401, 403, 200, 403, 200)
OPERATOR = (401, 401, 401, 403, 403, 403, 200, 200, 401, 401, 200, 200, 403, 200)
ANY_OPERATOR = (401, 401, 401, 403, 403, 403, 200, 200, 401, 401, 200, 200, 200, 200)
READER = (401, 401, 401, 403, 200, 403, 200, 200, 401, 401, 200, 200, 403, 200)
TASK_CALLER = (401, 401, 401, 200, 200, 403, 200, 200, 401, 401, 200, 200, 403, 200)
PARTICIPANT = (401, 401, 401, 403, 200, 403, 403, 403, 401, 401, 403, 403, 403, 403)


def _with(statuses: tuple[int, ...], granted: int) -> tuple[int, ...]:
    """The same roles, where what is granted has another status than 200."""
    return tuple(granted if status == 200 else status for status in statuses)


# Every route with the status for each role; where the granted status is an error, it is one that changes nothing.
TABLE: dict[tuple[str, str], tuple[int, ...]] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/metrics"): OPEN,
    ("GET", "/v1/keys"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/"): OPEN,
    ("GET", "/guide"): OPEN,
    ("GET", "/guide/{guide}"): OPEN,
    ("GET", "/guide/vectors.json"): OPEN,
    ("GET", "/docs"): OPEN,
    ("GET", "/docs/static/{file}"): OPEN,
    ("POST", "/v1/tasks"): _with(GLOBAL_ADMIN, 409),
    ("GET", "/v1/tasks"): ANY_OPERATOR,
    ("POST", "/v1/operator-tokens"): _with(GLOBAL_ADMIN, 404),
    ("GET", "/v1/operator-tokens"): GLOBAL_ADMIN,
    ("DELETE", "/v1/operator-tokens/{token_id}"): _with(GLOBAL_ADMIN, 404),
    ("POST", "/v1/operator-tokens/{token_id}/rotate"): _with(GLOBAL_ADMIN, 404),
    ("POST", f"{TASK}/start"): ADMIN,
    ("POST", f"{TASK}/pause"): ADMIN,
    ("POST", f"{TASK}/resume"): ADMIN,
    ("PUT", f"{TASK}/deadlines"): ADMIN,
    ("POST", f"{TASK}/what-if"): ADMIN,
    ("GET", f"{TASK}/codes"): ADMIN,
    ("POST", f"{TASK}/codes"): _with(ADMIN, 201),
    ("DELETE", f"{TASK}/codes/{{code_id}}"): _with(ADMIN, 404),
    ("GET", "/v1/presets"): ANY_OPERATOR,
    ("GET", "/v1/me"): ANY_OPERATOR,
    ("GET", "/dashboard"): OPEN,
    ("GET", "/dashboard/{file_path:path}"): (404,) * 14,
    ("GET", f"{TASK}/rounds"): OPERATOR,
    ("GET", f"{TASK}/progress"): OPERATOR,
    ("GET", f"{TASK}/outcomes"): OPERATOR,
    ("GET", f"{TASK}/costs"): OPERATOR,
    ("GET", f"{TASK}/accounts"): OPERATOR,
    ("GET", f"{TASK}/forecast"): OPERATOR,
    ("GET", f"{TASK}/export/{{table}}"): OPERATOR,
    ("GET", f"{TASK}/clients/{{client_id}}/rounds"): _with(OPERATOR, 404),
    ("GET", f"{TASK}/clients/{{client_id}}/ledger"): _with(OPERATOR, 404),
    ("POST", f"{TASK}/stop"): ADMIN,
    ("DELETE", TASK): _with(ADMIN, 409),
    ("GET", TASK): TASK_CALLER,
    ("GET", f"{TASK}/models"): READER,
    ("GET", f"{TASK}/models/{{version}}"): READER,
    ("PUT", f"{TASK}/models/0"): _with(ADMIN, 422),
    ("GET", f"{TASK}/models/{{version}}.safetensors"): READER,
    ("GET", f"{TASK}/rounds/{{round_number}}"): READER,
    ("DELETE", f"{TASK}/rounds/{{round_number}}/updates/{{client_id}}"): _with(ADMIN, 404),
    ("GET", f"{TASK}/events"): OPERATOR,
    ("GET", f"{TASK}/clients"): OPERATOR,
    ("DELETE", f"{TASK}/clients/{{client_id}}"): _with(ADMIN, 404),
    # Here the code in the body counts, and no token.
    ("POST", f"{TASK}/clients"): (409,) * 14,
    # Here the certificate of the connection counts, and no token.
    ("POST", f"{TASK}/clients/certificate"): (401,) * 14,
    ("POST", f"{TASK}/clients/me/token"): PARTICIPANT,
    ("PUT", f"{TASK}/clients/me/profile"): PARTICIPANT,
    ("GET", f"{TASK}/clients/me/selection"): PARTICIPANT,
    ("GET", f"{TASK}/clients/me/ledger"): PARTICIPANT,
    ("DELETE", f"{TASK}/clients/me"): _with(PARTICIPANT, 204),
    ("GET", f"{TASK}/rounds/current"): PARTICIPANT,
    ("PUT", f"{TASK}/rounds/{{round_number}}/budget"): PARTICIPANT,
    ("PUT", f"{TASK}/rounds/{{round_number}}/update"): _with(PARTICIPANT, 422),
}


@dataclass
class Stage:
    """A live coordinator with a training task, a second task, and a token of every kind."""

    url: str
    state_dir: Path
    log: Path
    clients: list[ScriptedClient]
    elsewhere: ScriptedClient
    tokens: dict[str, str]

    @property
    def task_id(self) -> str:
        return self.clients[0].task_id

    def request(self, role: str, method: str, path: str, **options: Any) -> httpx.Response:
        """An answer of which only the head is needed: a live feed has no end."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} if role in self.tokens else {}
        with httpx.stream(method, f"{self.url}{path}", headers=headers, timeout=60, **options) as answer:
            return answer

    def text(self, role: str, path: str) -> str:
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=60).raise_for_status().text


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    state_dir, log = tmp_path_factory.mktemp("roles"), tmp_path_factory.mktemp("log") / "log"
    arguments = ["serve", "--port", "0", "--state-dir", str(state_dir), "--preset", "digits"]
    process = ServerProcess(arguments, environment={"QIDPFL_LOG_FORMAT": "json"}, stdout=log, stderr=log)
    try:
        yield _staged(_address(process, log), state_dir, log)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _address(process: ServerProcess, log: Path) -> str:
    while process.poll() is None:
        for line in log.read_text().splitlines() if log.exists() else ():
            if '"listening"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.05)
    raise RuntimeError(log.read_text())


def _staged(url: str, state_dir: Path, log: Path) -> Stage:
    tokens = {role: (state_dir / f"{role}.token").read_text().strip() for role in ("admin", "viewer")}
    clients = _task(url, tokens["admin"], "here")
    elsewhere = _task(url, tokens["admin"], "elsewhere")[0]
    first = clients[0]
    first.enrol()
    tokens["revoked token"] = first.token
    for client in (*clients, elsewhere):
        client.enrol()
        client.profile().raise_for_status()
    tokens |= {"wrong token": "x" * 43, "enrolment code": first.code}
    tokens |= {"client": first.token, "client elsewhere": elsewhere.token}
    tokens |= _operators(url, tokens["admin"], first.task_id, elsewhere.task_id)
    return Stage(url, state_dir, log, clients, elsewhere, tokens)


def _task(url: str, admin: str, name: str) -> list[ScriptedClient]:
    overrides = {"rounds": WINDOWS | {"expected_clients": 3}}
    body = {"name": name, "preset": "digits", "overrides": overrides, "single_use_codes": 0}
    headers = {"Authorization": f"Bearer {admin}"}
    made = httpx.post(f"{url}/v1/tasks", json=body, headers=headers, timeout=60).raise_for_status().json()
    code = made["enrolment_codes"][0]
    return [ScriptedClient(url, made["task"]["task_id"], code, f"key-of-client-{name}-{n}") for n in range(3)]


def _operators(url: str, admin: str, task_id: str, other_task_id: str) -> dict[str, str]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {admin}"}, timeout=60) as http:

        def made(role: str, task_id: str | None = None, valid_s: float | None = None) -> dict[str, Any]:
            body = {"name": "someone", "role": role, "task_id": task_id, "valid_s": valid_s}
            answer: dict[str, Any] = http.post("/v1/operator-tokens", json=body).raise_for_status().json()
            return answer

        revoked = made("admin")
        http.delete(f"/v1/operator-tokens/{revoked['info']['token_id']}").raise_for_status()
        return {
            "revoked operator": revoked["token"],
            "expired operator": made("admin", valid_s=1e-6)["token"],
            "viewer of task": made("viewer", task_id)["token"],
            "admin of task": made("admin", task_id)["token"],
            "admin elsewhere": made("admin", other_task_id)["token"],
            "second admin": made("admin")["token"],
        }


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_route_is_in_the_table(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    engine = open_engine(settings.database_url)
    migrate(engine)
    store = Store(engine, FolderBlobs(settings.blob_folder))
    clock = SystemClock()
    app = create_app(
        settings=settings,
        store=store,
        clock=clock,
        secrets=load_secrets(Settings(state_dir=tmp_path)),
        scheduler=Scheduler(store, clock, lambda task: None),
        notifier=ChangeNotifier(store),
    )
    store.close()
    found = {
        (method, route.path)
        for route in iter_route_contexts(app.routes)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert found == set(TABLE)


@pytest.mark.parametrize(("method", "path"), TABLE, ids=map(" ".join, TABLE))
def test_a_route_answers_each_role_as_the_table_says(stage: Stage, method: str, path: str) -> None:
    # Stopping is tried on the task that nothing else is tried on.
    task_id = stage.elsewhere.task_id if path.endswith("/stop") else stage.task_id
    concrete = path.replace("{task_id}", task_id).replace("{version}", "0")
    concrete = concrete.replace("{round_number}", "1").replace("{client_id}", "nobody").replace("{token_id}", "0" * 24)
    concrete = concrete.replace("{guide}", "protocol").replace("{file}", "docs.js")
    concrete = concrete.replace("{code_id}", "0" * 24).replace("{table}", "rounds")
    swapped = {"admin of task": "admin elsewhere", "admin elsewhere": "admin of task"}
    roles = swapped if path.endswith("/stop") else {}
    enrolment = {"enrolment_code": stage.tokens["enrolment code"], "enrolment_key": "key-of-a-late-client"}
    bodies: dict[str, Any] = {
        "/v1/tasks": {"name": "here", "preset": "digits"},
        "/v1/operator-tokens": {"name": "x", "role": "viewer", "task_id": "0" * 24},
        "/v1/operator-tokens/{token_id}/rotate": {},
        f"{TASK}/clients/certificate": {},
        f"{TASK}/deadlines": {"declare_s": 500.0},
        f"{TASK}/what-if": {"rounds": 1},
        f"{TASK}/codes": {"count": 1},
        f"{TASK}/clients": enrolment,
        f"{TASK}/clients/me/profile": PROFILE,
        f"{TASK}/rounds/{{round_number}}/budget": {"decline": True, "reason": "only asking"},
    }
    options = {"json": bodies[path]} if path in bodies and method != "GET" else {}
    found = {}
    for role in ROLES:
        answer = stage.request(roles.get(role, role), method, concrete, **options)
        found[role] = answer.status_code
        assert answer.status_code < 400 or answer.headers["Content-Type"] == "application/problem+json"
    assert found == dict(zip(ROLES, TABLE[method, path], strict=True))


def test_missing_wrong_and_revoked_credentials_get_the_same_answer(stage: Stage) -> None:
    answers = set()
    for role in ("nobody", "wrong token", "revoked token", "revoked operator", "expired operator"):
        headers = {"Authorization": f"Bearer {stage.tokens[role]}"} if role in stage.tokens else {}
        answer = httpx.get(f"{stage.url}/v1/tasks/{stage.task_id}", headers=headers, timeout=60)
        answers.add((answer.status_code, answer.content, answer.headers["WWW-Authenticate"]))
    assert len(answers) == 1


def test_a_token_for_one_task_lists_this_task_only(stage: Stage) -> None:
    listed = json.loads(stage.text("viewer of task", "/v1/tasks"))
    assert [task["task_id"] for task in listed] == [stage.task_id]


@pytest.mark.parametrize("role", ["client", "viewer of task", "admin of task"])
def test_a_task_that_is_not_there_looks_like_a_foreign_one(stage: Stage, role: str) -> None:
    unknown, foreign = (
        httpx.get(
            f"{stage.url}/v1/tasks/{task_id}",
            headers={"Authorization": f"Bearer {stage.tokens[role]}"},
            timeout=60,
        )
        for task_id in ("0" * 24, stage.elsewhere.task_id)
    )
    assert (unknown.status_code, unknown.content) == (foreign.status_code, foreign.content) == (403, foreign.content)


def test_documents_and_metrics_can_be_closed(tmp_path: Path) -> None:
    with running(tmp_path, environment={"QIDPFL_OPEN_DOCS": "false"}) as coordinator:
        assert httpx.get(f"{coordinator.url}/openapi.json", timeout=60).status_code == 404
        assert httpx.get(f"{coordinator.url}/docs", timeout=60).status_code == 404
        assert httpx.get(f"{coordinator.url}/metrics", timeout=60).status_code == 401
        assert httpx.get(f"{coordinator.url}/healthz", timeout=60).status_code == 200
        with coordinator.admin as http:
            assert "qidpfl_requests_total" in http.get("/metrics").text


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_token_code_or_key_is_readable_in_the_store(stage: Stage) -> None:
    secrets = [value for role, value in stage.tokens.items() if role != "wrong token"]
    secrets += [client.key for client in stage.clients] + [client.token for client in stage.clients]
    private = {stage.state_dir / name for name in ("admin.token", "viewer.token", "digits.code")}
    looked_at = 0
    for path in stage.state_dir.rglob("*"):
        if path.is_file() and path not in private:
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets), path
            looked_at += 1
    assert looked_at >= 2


def test_secret_files_are_for_their_owner_only(stage: Stage) -> None:
    for name in ("admin.token", "viewer.token", "digits.code"):
        assert stat.S_IMODE((stage.state_dir / name).stat().st_mode) == 0o600


def test_no_secret_is_written_to_a_pipe_or_a_log(stage: Stage) -> None:
    codes = (stage.state_dir / "digits.code").read_text().split()
    for token in (*stage.tokens.values(), *codes):
        headers = {"Authorization": f"Bearer {token}"}
        httpx.get(f"{stage.url}/v1/tasks", headers=headers, timeout=60)
        httpx.get(f"{stage.url}/v1/tasks/{stage.task_id}/rounds/1?token={token}", timeout=60)
        httpx.post(f"{stage.url}/v1/tasks/{stage.task_id}/clients", json={"enrolment_code": token}, timeout=60)
    log = stage.log.read_text()
    assert "listening" in log
    assert "admin.token" in log
    secrets = [*stage.tokens.values(), *codes, *(client.key for client in stage.clients)]
    assert not [secret for secret in secrets if secret in log]


def test_no_client_sees_the_budget_of_another_while_the_round_is_open(stage: Stage) -> None:
    one, other = stage.clients[1], stage.clients[2]
    one.http.put("/rounds/1/budget", json={"rho": 0.043728195}).raise_for_status()
    one.upload(one.poll()["round"]).raise_for_status()  # type: ignore[index]
    assert "0.043728195" in one.http.get("/clients/me/ledger").text
    task = f"/v1/tasks/{stage.task_id}"
    shared = ("", "/models", "/rounds/1")
    seen = [stage.text(role, f"{task}{path}") for role in ("admin", "viewer") for path in shared]
    seen += [other.http.get(f"{path}").text for path in (*shared, "/rounds/current", "/clients/me/selection")]
    seen += [
        other.http.get("/clients/me/ledger").text,
        stage.text("viewer", "/metrics"),
        stage.text("admin", "/v1/tasks"),
    ]
    seen.append(_feed_so_far(stage))
    # A number of its own: the seconds of a moment, or of a deadline, may end in the same digits.
    assert not [text for text in seen if re.search(r"(?<!\d)0\.0437", text)]
    open_round = json.loads(stage.text("admin", f"{task}/rounds/1"))
    assert (open_round["state"], open_round["declared_total"], open_round["clients"]) == ("open", None, None)
    assert one.client_id not in stage.text("viewer", f"{task}/rounds/1")


def _feed_so_far(stage: Stage) -> str:
    """All events of the task until now."""
    headers = {"Authorization": f"Bearer {stage.tokens['viewer']}"}
    lines = []
    with httpx.stream("GET", f"{stage.url}/v1/tasks/{stage.task_id}/events", headers=headers, timeout=60) as feed:
        for line in feed.iter_lines():
            if line == ": still here":
                break
            lines.append(line)
    assert any("round.opened" in line for line in lines)
    return "\n".join(lines)
