"""Whether a task has room for a fleet: asked before the first member enrols."""

import time
from collections.abc import Callable

import httpx

from qidpfl_shared.protocol.messages import TaskView

from ..errors import ClientError, Misconfigured, Unavailable, Unreachable
from ..participant.runner import ReconnectPolicy
from .plan import FleetPlan


def check_room(plan: FleetPlan, http: httpx.Client, report: Callable[[str], None]) -> None:
    """Refuse a fleet that is larger than the free places of the task. A fleet that continues is not checked.

    Raises `Misconfigured`, and `Unreachable` if the coordinator does not answer.
    """
    if plan.has_enrolled:
        return
    members = len(plan.played)
    if 1 < len(plan.codes) < members:
        raise Misconfigured(
            f"there are {len(plan.codes)} single-use codes for {members} members: use --clients {len(plan.codes)},"
            f" or a task of that size, {_larger(plan.clients)}"
        )
    view = _task(plan, http, report)
    if view is None or view.state.ended:
        return
    places = view.spec.bounds.clients_max
    if view.spec.workload.partition is not None:
        places = min(places, view.spec.workload.partition.clients)
    if plan.ordinals is not None and plan.ordinals[-1] >= places:
        raise Misconfigured(
            f"task {view.name} has {places} places, with the ordinals 0 to {places - 1}: there is no ordinal"
            f" {plan.ordinals[-1]}"
        )
    if members > places - view.clients:
        if plan.ordinals is not None:
            raise Misconfigured(
                f"task {view.name} has {places} places, {view.clients} of them taken: ordinals"
                f" {plan.ordinals[0]}-{plan.ordinals[-1]} are not all free"
            )
        taken = f", {view.clients} of them taken" if view.clients else ""
        fits = f"use --clients {places - view.clients}, or " if view.clients < places else "use "
        raise Misconfigured(
            f"task {view.name} has {places} places{taken}, not {plan.clients}: {fits}a task of that size,"
            f" {_larger(plan.clients)}"
        )


def _larger(clients: int) -> str:
    return f"qidpfl-server serve --preset PRESET --task NEW-NAME --clients {clients}"


def _task(plan: FleetPlan, http: httpx.Client, report: Callable[[str], None]) -> TaskView | None:
    """The task; None if its code does not show it: the members then report why."""
    api = plan.api(http)
    reconnect = ReconnectPolicy(patience_s=plan.patience_s, first_contact_s=plan.first_contact_s, report=report)
    while True:
        try:
            return api.task(code=plan.codes[0])
        except (Unreachable, Unavailable) as error:
            time.sleep(reconnect.pause_s(error))
        except ClientError:
            return None
