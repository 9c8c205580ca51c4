"""No JSON body costs the coordinator more than some tens of milliseconds of processor time."""

import json
from collections.abc import Iterator

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, running
from support.http_attacks import processor_s

pytestmark = pytest.mark.live

# Processor time of all threads of the coordinator. Without limits the worst of these bodies takes ten seconds.
LIMIT_S = 0.08
ROUTES = {
    "create": ("admin", "POST", "/v1/tasks"),
    "enrol": ("outsider", "POST", "/v1/tasks/{task_id}/clients"),
    "profile": ("client", "PUT", "/v1/tasks/{task_id}/clients/me/profile"),
    "profile of an outsider": ("outsider", "PUT", "/v1/tasks/{task_id}/clients/me/profile"),
    "budget": ("client", "PUT", "/v1/tasks/{task_id}/rounds/1/budget"),
}


def keys(count: int) -> str:
    return ",".join(f'"k{number}":1' for number in range(count))


BODIES = {
    "2 MB of unknown keys": "{" + keys(180_000) + "}",
    "500 kB of unknown keys": "{" + keys(45_000) + "}",
    "16 kB of unknown keys": "{" + keys(1_600) + "}",
    "2 MB of unknown keys, deeper": '{"overrides":{' + keys(180_000) + "}}",
    "many wrong counts": json.dumps({"label_counts": ["x"] * 400_000, "size": 1, "privacy_value": 1.0}),
    "100,000 wrong counts": json.dumps({"label_counts": [-1] * 100_000, "size": 1, "privacy_value": 1.0}),
    "100,000 counts": json.dumps({"label_counts": [1] * 100_000, "size": 1, "privacy_value": 1.0}),
    "many empty lists": '{"label_counts":[' + ",".join(["[]"] * 600_000) + "]}",
    "many objects": '{"label_counts":[' + ",".join(['{"a":1}'] * 200_000) + "]}",
    "wrong tensors": json.dumps(
        {"name": "x", "preset": "digits", "overrides": {"layout": {"tensors": [{"name": 1, "shape": 1}] * 8_000}}}
    ),
    "a long number": '{"size":1.' + "1" * 2_000_000 + "}",
    "a long key": '{"' + "\\u0000" * 300_000 + '":1}',
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Coordinator, dict[str, dict[str, str]], str]]:
    with running(tmp_path_factory.mktemp("bodies")) as coordinator:
        task_id, code = coordinator.create_task("bodies", rounds={"expected_clients": 3})
        client = ScriptedClient(coordinator.url, task_id, code, "key-of-a-client-with-large-bodies")
        client.enrol()
        admin = (coordinator.state_dir / "admin.token").read_text().strip()
        headers = {
            "admin": {"Authorization": f"Bearer {admin}"},
            "client": {"Authorization": f"Bearer {client.token}"},
            "outsider": {},
        }
        yield coordinator, headers, task_id


@pytest.mark.parametrize("route", ROUTES)
def test_no_body_takes_long(stage: tuple[Coordinator, dict[str, dict[str, str]], str], route: str) -> None:
    coordinator, headers, task_id = stage
    role, method, path = ROUTES[route]
    slow, open_doors = {}, {}
    with httpx.Client(headers=headers[role] | {"Content-Type": "application/json"}, timeout=60) as http:
        for name, body in BODIES.items():
            costs = []
            for _ in range(2):
                start = processor_s(coordinator)
                answer = http.request(method, coordinator.url + path.format(task_id=task_id), content=body.encode())
                costs.append(processor_s(coordinator) - start)
            if min(costs) > LIMIT_S:
                slow[name] = round(min(costs), 3)
            if not 400 <= answer.status_code < 500 or len(answer.content) > 10_000:
                open_doors[name] = (answer.status_code, answer.text[:200])
    assert (slow, open_doors) == ({}, {})


def test_a_large_honest_profile_is_accepted(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("labels")) as coordinator:
        labels = 30_000
        layout = {"tensors": [{"name": "bias", "shape": [labels]}]}
        workload = {"dataset": "none", "network": "wide", "labels": labels, "partition": None}
        weights = {"reference": "given", "reference_weights": [1.0] * labels}
        task_id, code = coordinator.create_task("labels", workload=workload, layout=layout, selection=weights)
        client = ScriptedClient(coordinator.url, task_id, code, "key-of-a-client-with-labels", labels=(1,) * labels)
        client.enrol()
        assert client.profile().status_code == 200
