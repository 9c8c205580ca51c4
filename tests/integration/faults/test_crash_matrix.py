"""Kill the coordinator at every failpoint and restart it: nothing that it acknowledged is lost or doubled."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from qidpfl_shared.failpoints import EVALUATION_FAILPOINTS, SERVER_FAILPOINTS
from support.coordinators import FILE_UPDATES, NO_TIMEOUTS, Coordinator, ScriptedClient
from support.faults import broken_rules
from support.task_checks import violations

pytestmark = pytest.mark.live

Gather = Callable[..., list[ScriptedClient]]
HORIZON = 3
CLIENTS = 4
PATIENCE_S = 120.0
# Every step here happens because all clients have answered, never because of a deadline.
# An upload of more than one piece of 1 MiB.
LARGE = {
    "workload": {"network": "wide"},
    "layout": {"tensors": [{"name": "weight", "shape": [10, 27_000]}]},
}


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("hit", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SERVER_FAILPOINTS)
def test_a_coordinator_killed_at_any_failpoint_continues_where_it_was(
    name: str, hit: int, store_url: str, tmp_path: Path, gather: Gather
) -> None:
    coordinator = Coordinator(tmp_path, store_url=store_url)
    coordinator.environment = {"QIDPFL_FAILPOINT": f"{name}:{hit}"}
    with coordinator.start(), ThreadPoolExecutor(CLIENTS) as threads:
        clients = gather(coordinator, **(LARGE if name == "upload.mid_body" else {}))
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert violations(coordinator, clients[0].task_id, clients) == []


# Where an object is stored and its row is not, or the other way round. The long form has all failpoints.
AROUND_OBJECTS = ("upload.blob_staged", "upload.before_commit", "settle.model_written")


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize(
    "name",
    [name if name in AROUND_OBJECTS else pytest.param(name, marks=pytest.mark.long) for name in SERVER_FAILPOINTS],
)
def test_a_coordinator_on_an_object_store_killed_at_any_failpoint_continues_where_it_was(
    name: str, store_url: str, bucket_url: str, tmp_path: Path, gather: Gather
) -> None:
    coordinator = Coordinator(tmp_path, store_url=store_url, blobs=bucket_url)
    coordinator.environment = {"QIDPFL_FAILPOINT": f"{name}:1"}
    with coordinator.start(), ThreadPoolExecutor(CLIENTS) as threads:
        clients = gather(coordinator, **(LARGE if name == "upload.mid_body" else FILE_UPDATES))
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert violations(coordinator, clients[0].task_id, clients) == []
        # With PostgreSQL the files may belong to another coordinator: they are removed after an hour.
        assert store_url.startswith("postgresql") or not list((tmp_path / "blobs" / "staging").iterdir())


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "settle.aggregate_computed",
        pytest.param("settle.model_written", marks=pytest.mark.long),
        pytest.param("settle.before_commit", marks=pytest.mark.long),
    ],
)
def test_optimal_weights_and_the_low_pass_are_exact_after_a_kill(
    name: str, store_url: str, tmp_path: Path, gather: Gather
) -> None:
    """The audit in `violations` computes every model again, bit for bit."""
    coordinator = Coordinator(tmp_path, store_url=store_url)
    coordinator.environment = {"QIDPFL_FAILPOINT": f"{name}:2"}
    with coordinator.start(), ThreadPoolExecutor(CLIENTS) as threads:
        clients = gather(coordinator, aggregation={"weighting": "optimal", "post_processing": "lowpass"})
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert violations(coordinator, clients[0].task_id, clients) == []


# Where money is planned, promised and paid. The long form has all failpoints.
AROUND_MONEY = ("declare.before_commit", "settle.before_commit", "settle.after_commit")


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("market", ["auction", "menu"])
@pytest.mark.parametrize(
    "name",
    [
        name if name in AROUND_MONEY else pytest.param(name, marks=pytest.mark.long)
        for name in SERVER_FAILPOINTS
        if name != "upload.mid_body"
    ],
)
def test_every_market_pays_exactly_after_a_kill(
    name: str, market: str, store_url: str, tmp_path: Path, gather: Gather
) -> None:
    """The audit in `violations` plans every round and computes every payment again."""
    coordinator = Coordinator(tmp_path, store_url=store_url)
    coordinator.environment = {"QIDPFL_FAILPOINT": f"{name}:1"}
    with coordinator.start(), ThreadPoolExecutor(CLIENTS) as threads:
        # All clients win the auction: it is no fault of a loser that it is not paid.
        game = {"market": market} | ({"winners": CLIENTS} if market == "auction" else {})
        bounds = {"privacy_value_min": 0.9, "privacy_value_max": 1.1}
        # An auction must not end because one winner declines.
        clients = gather(coordinator, game=game, bounds=bounds, rounds={"min_updates": CLIENTS - 1})
        if market == "menu":
            for client in clients:
                client.privacy_value = None
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert violations(coordinator, clients[0].task_id, clients) == []


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("name", ("settle.model_written", "settle.after_commit", *EVALUATION_FAILPOINTS))
def test_a_coordinator_killed_around_a_deferred_evaluation_stores_all_scores(
    name: str, store_url: str, tmp_path: Path, gather: Gather
) -> None:
    later = {"QIDPFL_DEFERRED_EVALUATION_S": "0"}
    coordinator = Coordinator(tmp_path, store_url=store_url)
    # The evaluation of round 2 is the first one that follows on the settlement.
    coordinator.environment = later | {"QIDPFL_FAILPOINT": f"{name}:{2 if name.startswith('settle') else 1}"}
    with coordinator.start(), ThreadPoolExecutor(CLIENTS) as threads:
        clients = gather(coordinator)
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = later | {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        assert violations(coordinator, clients[0].task_id, clients) == []
        task = f"/v1/tasks/{clients[0].task_id}"
        with coordinator.admin as http:
            results = [http.get(f"{task}/rounds/{number}").json() for number in range(1, HORIZON + 1)]
        assert all(result["accuracy"] is not None for result in results)
        assert ["evaluated_at" in result["timing"] for result in results] == [False, True, False]


def test_uploads_acknowledged_before_the_commit_are_caught(tmp_path: Path, gather: Gather) -> None:
    with broken(tmp_path, broken_rules.acknowledge_uploads_before_the_commit) as coordinator:
        clients = gather(coordinator)
        offers = first_offers(clients)
        clients[0].declare(offers[0]).raise_for_status()
        assert clients[0].upload(offers[0]).is_success
        assert coordinator.died_of() == signal.SIGKILL
        repaired(coordinator)
        assert any("were acknowledged, None is stored" in said for said in found(coordinator, clients))


def test_payments_in_a_second_transaction_are_caught(tmp_path: Path, gather: Gather) -> None:
    with broken(tmp_path, broken_rules.pay_in_a_second_transaction) as coordinator:
        clients = gather(coordinator)
        answer_all(clients)
        assert coordinator.died_of() == signal.SIGKILL
        repaired(coordinator)
        said = found(coordinator, clients)
        assert any(line.startswith("audit:") and "are not the reward" in line for line in said)
        assert any("[0, 1, 2, 3] are not paid" in line for line in said)


def test_uploads_without_their_bytes_are_caught(tmp_path: Path, gather: Gather) -> None:
    with broken(tmp_path, broken_rules.name_blobs_after_the_commit) as coordinator:
        clients = gather(coordinator)
        offers = first_offers(clients)
        clients[0].declare(offers[0]).raise_for_status()
        assert clients[0].upload(offers[0]).is_success
        coordinator.kill()
        repaired(coordinator)
        assert any(line.startswith("audit:") and "is missing from" in line for line in found(coordinator, clients))


@pytest.fixture
def gather() -> Iterator[Gather]:
    """Makes the clients of a new task; they find the coordinator again when it has another address."""
    with ExitStack() as connections:

        def gathered(coordinator: Coordinator, **overrides: Any) -> list[ScriptedClient]:
            rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
            rounds |= overrides.pop("rounds", {})
            game = {"horizon": HORIZON} | overrides.pop("game", {})
            task_id, code = coordinator.create_task(game=game, rounds=rounds, **overrides)
            keys = [f"the-key-of-client-{n}" for n in range(CLIENTS)]
            clients = [
                ScriptedClient(coordinator.url, task_id, code, key, locate=lambda: coordinator.url) for key in keys
            ]
            for client in clients:
                connections.enter_context(client.http)
            return clients

        yield gathered


def broken(state_dir: Path, sabotage: Callable[[], None]) -> Coordinator:
    return Coordinator(state_dir, sabotage=sabotage).start()


def repaired(coordinator: Coordinator) -> None:
    coordinator.sabotage = None
    coordinator.start()


def found(coordinator: Coordinator, clients: Sequence[ScriptedClient]) -> list[str]:
    return violations(coordinator, clients[0].task_id, clients)


def first_offers(clients: Sequence[ScriptedClient]) -> list[dict[str, Any]]:
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    answers = [client.poll(wait=60) for client in clients]
    return [answer["round"] for answer in answers if answer is not None]


def answer_all(clients: Sequence[ScriptedClient]) -> None:
    for client, offer in zip(clients, first_offers(clients), strict=True):
        client.declare(offer).raise_for_status()
    threads = [threading.Thread(target=client.upload, args=(client.offers["1.1"][0],)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
