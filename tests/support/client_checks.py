"""What must hold for a client after any fault: one update per round, every release charged once, all of it paid."""

import math
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import httpx

from qidpfl_client.api import TaskApi
from qidpfl_client.journal.journal import Entry, Journal
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_shared.protocol.ledger import Ledger, SpendState
from support.coordinators import Coordinator
from support.peers.recording_proxy import RecordingProxy

_SENT = (SpendState.SPENT, SpendState.SPENT_UNPAID)


def client_violations(coordinator: Coordinator, proxy: RecordingProxy, path: Path, task_id: str) -> list[str]:
    """All faults of a client of a task, found in its journal, at its coordinator and in the traffic between them."""
    with Journal(path, read_only=True) as journal, httpx.Client(base_url=coordinator.url, timeout=60) as http:
        membership = journal.membership(task_id)
        assert membership is not None
        theirs = TaskApi(http, task_id=task_id, token=membership.token).ledger()
        own = {entry.release: entry for entry in journal.entries(task_id)}
        earned, spent = read_ledger(journal).earned_micro, read_ledger(journal).spent_rho
    found = [*_audited(coordinator), *_passed(proxy, task_id, own), *_compared(theirs, own)]
    if earned != theirs.earned_micro:
        found.append(f"the journal has earned {earned}, the coordinator has paid {theirs.earned_micro}")
    declared = math.fsum(entry.proven_rho for entry in own.values() if entry.state in _SENT)
    if spent != declared:
        found.append(f"the journal has spent {spent}, its entries are {declared}")
    return found


def _audited(coordinator: Coordinator) -> Iterator[str]:
    try:
        if "0 violated" not in (report := coordinator.audit()):
            yield f"audit: {report}"
    except AssertionError as error:
        yield f"audit: {error}"


def _passed(proxy: RecordingProxy, task_id: str, own: dict[str, Entry]) -> Iterator[str]:
    """All uploads for one round are the same update, and the journal has it."""
    by_round: dict[str, set[str]] = {}
    for (path, _), digests in proxy.digests.items():
        if f"/tasks/{task_id}/" in path:
            number = path.split("/")[-2]
            by_round.setdefault(f"round/{number}", set()).update(digests)
    for release, updates in by_round.items():
        if len(updates) > 1:
            yield f"{release}: {len(updates)} different updates left"
        entry = own.get(release)
        known = "nothing" if entry is None or entry.digest is None else _header(entry.digest)
        if updates != {known}:
            yield f"{release}: {updates} left, the journal knows {known}"
        if entry is None or entry.state not in _SENT:
            yield f"{release} left and is not charged: {entry}"


def _compared(theirs: Ledger, own: dict[str, Entry]) -> Iterator[str]:
    """Each entry of the journal has charged at least what the coordinator has seen, and has the payment."""
    for seen in theirs.entries:
        entry = own.get(seen.release)
        if seen.state in _SENT and (entry is None or entry.state not in _SENT or entry.digest != seen.digest):
            yield f"{seen.release} was seen by the coordinator: {entry}"
        elif seen.state in _SENT and entry is not None:
            if entry.rho < seen.rho or entry.proven_rho < (math.inf if seen.proven_rho is None else seen.proven_rho):
                yield f"{seen.release}: {entry.rho} is less than the coordinator's {seen.rho}"
            if entry.payment_micro != seen.payment_micro:
                yield f"{seen.release}: paid {seen.payment_micro}, the journal says {entry.payment_micro}"
    for release, entry in own.items():
        if entry.state is SpendState.RESERVED:
            yield f"{release} is still reserved"


def _header(digest: str) -> str:
    return f"sha-256=:{b64encode(bytes.fromhex(digest)).decode()}:"
