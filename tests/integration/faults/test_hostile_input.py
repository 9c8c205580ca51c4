"""Any input gets problem+json with a code and a status that the OpenAPI document lists, never a 5xx."""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error, status_code_conformance
from schemathesis.core.result import Ok

from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

WINDOWS = {"declare_s": 600.0, "deliver_s": 600.0, "quiet_s": 600.0, "enrolment_window_s": 600.0}


@dataclass(frozen=True)
class Stage:
    """A live coordinator with one open round."""

    coordinator: Coordinator
    task_id: str
    client: ScriptedClient
    admin_token: str

    @property
    def tokens(self) -> dict[str, str]:
        return {"admin": self.admin_token, "client": self.client.token}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("hostile")) as coordinator:
        task_id, code = coordinator.create_task("fuzzed", rounds=WINDOWS | {"expected_clients": 3})
        clients = [ScriptedClient(coordinator.url, task_id, code, f"key-of-hostile-client-{n}") for n in range(3)]
        for client in clients:
            client.enrol()
            client.profile().raise_for_status()
        token = (coordinator.state_dir / "admin.token").read_text().strip()
        yield Stage(coordinator, task_id, clients[0], token)
        assert httpx.get(f"{coordinator.url}/readyz", timeout=60).status_code == 200
        assert "0 violated" in coordinator.audit()


# --- generated from the OpenAPI document -----------------------------------------------------------------------------

# A live feed has no end, and these two would end the task or the client that the others are tried on.
_LEFT_OUT = {
    "GET /v1/tasks/{task_id}/events",
    "POST /v1/tasks/{task_id}/stop",
    "DELETE /v1/tasks/{task_id}/clients/me",
}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("role", ["admin", "client"])
@pytest.mark.parametrize("examples", [4, pytest.param(30, marks=pytest.mark.long)])
def test_generated_requests_get_documented_answers(stage: Stage, role: str, mode: Any, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{stage.coordinator.url}/openapi.json")
    headers = {"Authorization": f"Bearer {stage.tokens[role]}"}
    tried = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        # An operation without parameters and body has no invalid form.
        speechless = not operation.body and not list(operation.iter_parameters())
        if operation.label not in _LEFT_OUT and not (speechless and mode is GenerationMode.NEGATIVE):
            _try_out(operation, mode, headers, stage.task_id, examples)
            tried += 1
    assert tried >= 12


def _try_out(operation: Any, mode: Any, headers: dict[str, str], task_id: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode), there=strategies.booleans())
    def one_request(case: Any, there: bool) -> None:
        # Half of the requests go to the task that is there: the others do not get past "no such task".
        if there and "task_id" in (case.path_parameters or {}):
            case.path_parameters["task_id"] = task_id
        if case.query and "wait" in case.query:
            case.query["wait"] = 0
        answer = case.call(headers=headers, timeout=60)
        case.validate_response(answer, checks=[not_a_server_error, status_code_conformance])
        if answer.status_code >= 400:
            assert "code" in answer.json()

    one_request()


# --- JSON that parsers stumble over ----------------------------------------------------------------------------------

# Per route: who calls, the method and path, a body without any fault, and one of its fields.
ROUTES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "create": ("admin", "POST", "", {"name": "fuzzed", "preset": "digits", "overrides": {"game": {}}}, "overrides"),
    "create, deep": (
        "admin",
        "POST",
        "",
        {"name": "fuzzed", "preset": "digits", "overrides": {"game": {"discount": 0.5}}},
        "discount",
    ),
    "create, codes": ("admin", "POST", "", {"name": "fuzzed", "preset": "digits", "single_use_codes": 0}, "name"),
    "what if": ("admin", "POST", "/{task_id}/what-if", {"reward_factor": 1.5, "rounds": 1}, "reward_factor"),
    "enrol": (
        "nobody",
        "POST",
        "/{task_id}/clients",
        {"enrolment_code": "0.x", "enrolment_key": "x" * 20, "ordinal": 0},
        "enrolment_key",
    ),
    "enrol, ordinal": (
        "nobody",
        "POST",
        "/{task_id}/clients",
        {"enrolment_code": "0.x", "enrolment_key": "x" * 20, "ordinal": -1},
        "ordinal",
    ),
    "profile": (
        "client",
        "PUT",
        "/{task_id}/clients/me/profile",
        {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1},
        "privacy_value",
    ),
    "profile, counts": (
        "client",
        "PUT",
        "/{task_id}/clients/me/profile",
        {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1},
        "label_counts",
    ),
    "budget": ("client", "PUT", "/{task_id}/rounds/1/budget", {"rho": 0.05}, "rho"),
    "budget, declined": ("client", "PUT", "/{task_id}/rounds/1/budget", {"decline": True, "reason": ""}, "decline"),
}
DEEP = 100_000
VALUES = {
    "NaN": b"NaN",
    "infinity": b"Infinity",
    "minus infinity": b"-Infinity",
    "a float that overflows": b"1e999",
    "minus a float that overflows": b"-1e999",
    "a list with a NaN": b"[NaN]",
    "an int beyond 64 bits": str(10**30).encode(),
    "an int beyond a float": b"9" * 400,
    "an int too long to convert": b"9" * 5000,
    "a lone surrogate": b'"\\ud800"',
    "an object with a surrogate for a key": b'{"\\udfff": "\\ud800"}',
    "a NUL": b'"\\u0000"',
    "a line break": b'"a\\nb"',
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a long text": b'"' + b"a" * (1 << 20) + b'"',
    "a long list": b"[" + b"1," * 400_000 + b"1]",
}


def hostile_bodies(valid: dict[str, Any], field: str) -> dict[str, bytes]:
    """Bodies that no parser should accept."""
    marked = json.dumps(_with_marker(valid, field)).encode()
    text = json.dumps(valid)
    values = {name: marked.replace(b'"MARKER"', value) for name, value in VALUES.items()}
    return values | {
        "nothing": b"",
        "a space": b" ",
        "half an object": text[:-1].encode(),
        "a comma too many": text[:-1].encode() + b",}",
        "two objects": text.encode() * 2,
        "a NUL byte": b"\0",
        "null": b"null",
        "a list": b"[]",
        "a number": b"1",
        "only brackets that open": b"[" * DEEP,
        "bytes that are not UTF-8": text.encode().replace(b'"', b'"\xff\xfe', 1),
        "half a character": b'{"\xc3',
        "an unknown field": json.dumps(valid | {"unknown": 1}).encode(),
        "an unknown field that is a surrogate": text[:-1].encode() + b', "\\ud800": 1}',
        "three megabytes": json.dumps(valid | {"unknown": "a" * (3 << 20)}).encode(),
        "three megabytes of spaces": b" " * (3 << 20) + text.encode(),
    }


def odd_bodies(valid: dict[str, Any]) -> dict[str, bytes]:
    """Bodies that a lenient reader would accept."""
    text = json.dumps(valid)
    return {
        "a BOM": codecs.BOM_UTF8 + text.encode(),
        "UTF-16": text.encode("utf-16"),
        "UTF-32": text.encode("utf-32"),
        "keys twice": f"{text[:-1]}, {text[1:]}".encode(),
    }


def _with_marker(valid: Any, field: str) -> Any:
    if not isinstance(valid, dict):
        return valid
    return {name: "MARKER" if name == field else _with_marker(value, field) for name, value in valid.items()}


@pytest.mark.parametrize("route", ROUTES)
def test_hostile_json_is_refused_with_a_code(stage: Stage, route: str) -> None:
    role, method, path, valid, field = ROUTES[route]
    url = f"{stage.coordinator.url}/v1/tasks{path.format(task_id=stage.task_id)}"
    headers = {"Authorization": f"Bearer {stage.tokens[role]}"} if role in stage.tokens else {}
    wrong = []
    with httpx.Client(headers=headers, timeout=60) as http:
        for name, body in hostile_bodies(valid, field).items():
            answer = http.request(method, url, content=body, headers={"Content-Type": "application/json"})
            if not (400 <= answer.status_code < 500 and has_code(answer)):
                wrong.append((name, answer.status_code, answer.text[:200]))
        for name, body in odd_bodies(valid).items():
            answer = http.request(method, url, content=body, headers={"Content-Type": "Application/JSON"})
            if (answer.status_code, has_code(answer)) != (400, True):
                wrong.append((name, answer.status_code, answer.text[:200]))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/x+json", "\xff", ""):
            content = json.dumps(valid).encode()
            answer = http.request(method, url, content=content, headers={b"Content-Type": kind.encode("latin-1")})
            if not (answer.status_code == 415 and has_code(answer)):
                wrong.append((kind, answer.status_code, answer.text[:200]))
    assert wrong == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/{task_id}/rounds/current?wait=nan"),
        ("GET", "/{task_id}/rounds/current?wait=inf"),
        ("GET", "/{task_id}/rounds/current?wait=-1"),
        ("GET", "/{task_id}/rounds/current?wait=1e999"),
        ("GET", "/{task_id}/rounds/current?after=1"),
        ("GET", "/{task_id}/rounds/current?after=%00"),
        ("GET", "/{task_id}/rounds/current?after=" + "9" * 5000),
        ("GET", "/{task_id}/rounds/" + "9" * 5000),
        ("GET", "/{task_id}/rounds/0"),
        ("GET", "/{task_id}/rounds/1.5"),
        ("GET", "/{task_id}/models/-1"),
        ("GET", "/{task_id}/models/9223372036854775808"),
        ("GET", "/{task_id}/models/..%2f..%2fadmin.token"),
        ("GET", "/{task_id}/models/%00"),
        ("GET", "/..%2f..%2fetc%2fpasswd"),
        ("GET", "/" + "a" * 20_000),
        ("GET", "/%ff%fe"),
        ("GET", "/{task_id}/nothing"),
        ("PATCH", "/{task_id}"),
        ("DELETE", "/{task_id}/rounds/1/update"),
        ("GET", "/"),
        ("GET", "/{task_id}/"),
    ],
)
def test_hostile_paths_and_queries_are_refused_with_a_code(stage: Stage, method: str, path: str) -> None:
    url = f"{stage.coordinator.url}/v1/tasks{path.format(task_id=stage.task_id)}"
    answer = httpx.request(method, url, headers={"Authorization": f"Bearer {stage.client.token}"}, timeout=60)
    assert 400 <= answer.status_code < 500
    assert has_code(answer)


def test_a_token_of_any_shape_is_only_unknown(stage: Stage) -> None:
    url = f"{stage.coordinator.url}/v1/tasks/{stage.task_id}"
    for value in (b"Bearer", b"Bearer \xff\xfe", b"Basic eDp5", b"bearer x", b"Bearer " + b"a" * 20_000):
        answer = httpx.get(url, headers={b"Authorization": value}, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


def has_code(answer: httpx.Response) -> bool:
    return answer.headers.get("Content-Type") == "application/problem+json" and bool(answer.json()["code"])


def test_another_method_learns_which_ones_there_are(stage: Stage) -> None:
    base = f"{stage.coordinator.url}/v1/tasks/{stage.task_id}"
    for path, methods in {
        "": "GET, DELETE",
        "/clients": "GET, POST",
        "/models/0": "GET, PUT",
        "/clients/me": "DELETE",
    }.items():
        answer = httpx.patch(base + path, timeout=60)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


@pytest.mark.parametrize("client_id", ["%00", "a" * 65, "%ff", "a%0a"])
def test_a_client_id_of_any_shape_is_only_refused(stage: Stage, client_id: str) -> None:
    url = f"{stage.coordinator.url}/v1/tasks/{stage.task_id}/clients/{client_id}"
    answer = httpx.delete(url, headers={"Authorization": f"Bearer {stage.admin_token}"}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_what_is_refused_by_its_headers_is_counted(stage: Stage) -> None:
    url, sent = f"{stage.coordinator.url}/v1/tasks/{stage.task_id}/clients", {"Content-Encoding": "gzip"}
    before = _counted(stage, 415)
    assert httpx.post(url, content=b"x", headers=sent, timeout=60).status_code == 415
    assert _counted(stage, 415) == before + 1


def _counted(stage: Stage, status: int) -> float:
    text = httpx.get(f"{stage.coordinator.url}/metrics", timeout=60).text
    prefix = f'qidpfl_requests_total{{method="POST",status="{status}"}} '
    return sum(float(line.removeprefix(prefix)) for line in text.splitlines() if line.startswith(prefix))


def test_every_error_of_the_document_has_its_schema_under_its_own_media_type(stage: Stage) -> None:
    document = httpx.get(f"{stage.coordinator.url}/openapi.json", timeout=60).json()
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/v1/")
    ]
    assert len(operations) > 15
    for name, operation in operations:
        errors = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        assert {"429", "500", "503"} <= set(errors), name
        for answer in errors.values():
            assert list(answer["content"]) == ["application/problem+json"], name
            schema = answer["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}, name
            codes = answer["description"].splitlines()
            assert len(codes) == len(set(codes)), name
        if "application/json" in operation.get("requestBody", {}).get("content", {}):
            # A question that stores nothing needs no space.
            space = set() if name.endswith("/what-if") else {"507"}
            assert {"400", "413", "415", "422"} | space <= set(errors), name
        if "application/octet-stream" in operation.get("requestBody", {}).get("content", {}):
            (digest,) = [one for one in operation["parameters"] if one["name"] == "content-digest"]
            assert digest["required"]
