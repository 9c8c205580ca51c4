"""What must hold for a task after any fault, checked from outside: audit, receipts, payments, announcements."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import httpx

from support.coordinators import Coordinator, ScriptedClient


def violations(coordinator: Coordinator, task_id: str, clients: Sequence[ScriptedClient]) -> list[str]:
    """All faults of a task that all clients should have finished."""
    return [*_audited(coordinator), *task_violations(coordinator, task_id, clients)]


def task_violations(
    coordinator: Coordinator, task_id: str, clients: Sequence[ScriptedClient], others: Collection[str] = ()
) -> list[str]:
    """The same without an audit of the whole store. `others` are the ids of the clients that are not scripted."""
    found = [*_receipts(coordinator, clients), *_announcements(clients)]
    with coordinator.admin as http:
        return [*found, *_rounds(http, task_id, clients, others), *_settlements(http, task_id)]


def _audited(coordinator: Coordinator) -> Iterator[str]:
    try:
        if "0 violated" not in coordinator.audit():
            yield "audit: no clean report"
    except AssertionError as error:
        yield f"audit: {error}"


def _receipts(coordinator: Coordinator, clients: Sequence[ScriptedClient]) -> Iterator[str]:
    """Each acknowledged update is stored: one digest per round and client, the same in the client's ledger."""
    for client in clients:
        headers = {"Authorization": f"Bearer {client.token}"}
        where = f"{coordinator.url}/v1/tasks/{client.task_id}/clients/me/ledger"
        ledger = httpx.get(where, headers=headers, timeout=60).raise_for_status().json()
        stored = {entry["release"]: entry["digest"] for entry in ledger["entries"]}
        for number, digests in client.receipts.items():
            if digests != {stored.get(f"round/{number}")}:
                known = stored.get(f"round/{number}")
                yield f"round {number}, client {client.key}: {digests} were acknowledged, {known} is stored"


def _announcements(clients: Sequence[ScriptedClient]) -> Iterator[str]:
    """Each round and attempt has one announcement, the same before and after a restart."""
    said: dict[str, set[str]] = {}
    for client in clients:
        for attempt, offers in client.offers.items():
            said.setdefault(attempt, set()).update(_terms(offer) for offer in offers)
    for attempt, terms in said.items():
        if len(terms) > 1:
            yield f"round {attempt} was announced in {len(terms)} ways: {sorted(terms)}"


def _terms(offer: dict[str, Any]) -> str:
    changing = ("declare_in_s", "deliver_in_s")
    return json.dumps({name: value for name, value in offer.items() if name not in changing}, sort_keys=True)


def _rounds(
    http: httpx.Client, task_id: str, clients: Sequence[ScriptedClient], others: Collection[str]
) -> Iterator[str]:
    """All rounds are settled, each client is paid once in each, and no micro-unit is lost."""
    task = http.get(f"/v1/tasks/{task_id}").raise_for_status().json()
    if task["state"] != "finished" or task["settled_rounds"] != task["horizon"]:
        played = f"{task['settled_rounds']} of {task['horizon']} rounds"
        yield f"the task is {task['state']} after {played}: {task['reason']}"
    earned: Counter[str] = Counter()
    for number in range(1, task["settled_rounds"] + 1):
        result = http.get(f"/v1/tasks/{task_id}/rounds/{number}").raise_for_status().json()
        payments = {entry["client_id"]: entry["payment_micro"] for entry in result["clients"]}
        if sum(payments.values()) + result["kept_micro"] != result["reward_micro"]:
            yield f"round {number}: {payments} and {result['kept_micro']} kept are not {result['reward_micro']}"
        expected = {client.client_id for client in clients} | set(others)
        if len(payments) != len(result["clients"]) or expected != set(payments):
            yield f"round {number}: results of {sorted(payments)}"
        unpaid = [entry["ordinal"] for entry in result["clients"] if not entry["payment_micro"] > 0]
        if unpaid:
            yield f"round {number}: {unpaid} are not paid"
        earned.update(payments)
    if task["paid_micro"] != earned.total():
        yield f"{earned.total()} was paid by round, {task['paid_micro']} in all"
    for client in clients:
        if len(client.receipts) != task["horizon"]:
            yield f"client {client.key} has receipts of rounds {sorted(client.receipts)} only"


def _settlements(http: httpx.Client, task_id: str) -> Iterator[str]:
    """Each round was settled once, as the feed tells."""
    with http.stream("GET", f"/v1/tasks/{task_id}/events") as feed:
        events = []
        for line in feed.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
            elif line.startswith(":"):
                break
    settled = Counter(event["round_number"] for event in events if event["kind"] == "round.settled")
    for number, times in settled.items():
        if times != 1:
            yield f"round {number} was settled {times} times"
