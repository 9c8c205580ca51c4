"""The selection is computed again: the label distance of each client, and which clients were selected."""

import math

from qidpfl_shared.core.custom_rules import CustomRuleFailed
from qidpfl_shared.core.selection import label_distances
from qidpfl_shared.protocol.task_spec import SelectionRule

from ...domain import Client, ClientState, Task
from ...plugins.rules import RuleRegistry
from ...service.selection import selection_of
from ..report import Report

# Other machines and library versions round differently.
_TOLERANCE = 1e-9


def audit_selection(task: Task, clients: list[Client], rules: RuleRegistry, report: Report) -> None:
    """Each client with a verdict has the right distance and is selected exactly if the rule selects it."""
    judged = [client for client in clients if client.has_verdict]
    # Late joiners have other reference histograms, and the store does not record which clients joined late.
    if not judged or task.spec.rounds.late_joiners:
        return
    _audit_distances(task, judged, report)
    rule = task.spec.selection.rule
    if rule is not SelectionRule.ALL and not all(client.has_histogram for client in judged):
        report.require(False, f"task {task.name}, selection: rule {rule} has judged a client without a histogram")
        return
    # Of unions that are equally near another machine may prefer another; without its function a rule cannot be asked.
    if rule is SelectionRule.UNION or (rule is SelectionRule.OWN and rules.select(task.spec) is None):
        return
    # A client that left without a histogram has no distance, which would tell that it was still there: the number of
    # clients, which decides whether there are enough, is then unknown.
    if any(client.state is ClientState.LEFT and client.has_profile and not client.has_histogram for client in clients):
        return
    try:
        selection = selection_of(task.spec, judged, rules)
    except CustomRuleFailed as error:
        report.require(False, f"task {task.name}, selection: {error}")
        return
    for client, kept, filled_up in zip(judged, selection.selected, selection.filled_up, strict=True):
        # The store does not record whether a client that left had been selected.
        if client.state is ClientState.LEFT:
            continue
        verdict = ClientState.SELECTED if kept else ClientState.REFUSED
        place = f"task {task.name}, client {client.client_id}"
        report.require(client.state is verdict, f"{place}: it is {client.state}, but the selection says {verdict}")
        report.require(client.filled_up == bool(filled_up), f"{place}: filled_up is {client.filled_up}")


def _audit_distances(task: Task, judged: list[Client], report: Report) -> None:
    shown = [client for client in judged if client.has_histogram]
    for client in judged:
        if not client.has_histogram:
            place = f"task {task.name}, client {client.client_id}"
            report.require(client.label_distance is None, f"{place}: it has a label distance without a histogram")
    if not shown:
        return
    histograms = [client.label_counts or () for client in shown]
    distances = label_distances(histograms=histograms, reference=task.spec.label_reference(histograms))
    for client, distance in zip(shown, distances, strict=True):
        known = client.label_distance
        report.require(
            known is not None and math.isclose(known, distance, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE),
            f"task {task.name}, client {client.client_id}: its label distance is {known}, not {distance}",
        )
