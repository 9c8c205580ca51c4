"""What a client did right and wrong, from the record of its requests. One function for each group of checks."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import norm

from qidpfl_shared.core.privacy.histogram import histogram_noise_std
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.wire import WireError, decode

from .exchange import Sent
from .noise_checks import ALPHA, ReceivedUpdate, check_releases
from .played_task import RETRY_AFTER_S, PlayedTask
from .report import ConformanceReport
from .scenarios import BOUNDED, GREEDY, NOT_INVITED, PRICED_OUT, Fault

# What a budget may differ from the best one, relatively: a client may print fewer digits than it computes.
_CLOSE = 1e-6
_MOST_LATE_UPLOADS = 3
_CODES_OF_UPLOADS = {
    "digest_required": "an upload without a sha-256 Content-Digest",
    "digest_mismatch": "a Content-Digest of other bytes",
    "wrong_length": "an upload that does not have 4·d bytes",
    "not_finite": "an upload with NaN or infinity",
}


def check_client(tasks: Sequence[PlayedTask]) -> ConformanceReport:
    """Judge a client by its requests to all tasks of the kit."""
    report = ConformanceReport()
    by_name = {task.scenario.name: task for task in tasks}
    if (rounds := by_name.get("rounds")) is not None:
        if rounds.touched:
            _check_joining(report, rounds)
            _check_budgets(report, rounds)
            _check_uploads(report, rounds)
            _check_retries(report, rounds)
            _check_statistics(report, rounds)
        else:
            report.not_checked("task.rounds", "no client came")
    for task in tasks:
        if task.scenario.name != "rounds":
            _check_refusal(report, task)
    _check_histograms(report, tasks)
    return report


# --- joining ---------------------------------------------------------------------------------------------------------


def _check_joining(report: ConformanceReport, task: PlayedTask) -> None:
    unauthenticated = [sent.kind for sent in task.sent if sent.code == "unauthenticated"]
    wrong = f"without the client's token: {', '.join(sorted(set(unauthenticated)))}"
    report.expect("requests.token", not unauthenticated, wrong)
    unknown = [sent for sent in task.sent if sent.code in ("invalid_request", "not_found")]
    said = ", ".join(sorted({f"{sent.kind} got {sent.status}" for sent in unknown}))
    report.expect("requests.valid", not unknown, f"invalid requests: {said}")
    enrolments = task.of_kind("enrol")
    keys = {_json(sent).get("enrolment_key") for sent in enrolments}
    if len(enrolments) < 2:
        report.fails("enrol.repeated", "the client did not repeat its enrolment after 503")
    else:
        report.expect("enrol.repeated", len(keys) == 1, "the repeat of an enrolment had another enrolment_key")
        waited = enrolments[1].at - enrolments[0].at
        wrong = f"the client came back after {waited:.2f} s, and Retry-After said {RETRY_AFTER_S} s"
        report.expect("retry.waits", waited > 0.9 * RETRY_AFTER_S, wrong)
    _check_profile(report, task)


def _check_profile(report: ConformanceReport, task: PlayedTask) -> None:
    profiles = task.of_kind("profile")
    if not profiles:
        report.fails("profile.sent", "the client stored no profile")
        return
    wrong = [sent for sent in profiles if sent.code in ("histogram_mismatch", "histogram_required")]
    said = "the label counts do not fit the labels of the task, or do not add up to the size"
    report.expect("profile.adds_up", not wrong, said)
    media = {sent.headers.get("content-type", "").partition(";")[0] for sent in profiles}
    report.expect("profile.media_type", media == {"application/json"}, f"media type {', '.join(sorted(media))}")
    same = all(_json(first) == _json(second) for first, second in pairwise(profiles))
    if len(profiles) < 2:
        report.fails("profile.repeated", "the client did not repeat its profile after a lost answer")
    else:
        report.expect("profile.repeated", same, "the repeat of a profile had other numbers: a second release")


def _check_histograms(report: ConformanceReport, tasks: Sequence[PlayedTask]) -> None:
    """Histograms of different tasks must differ if they have noise."""
    profiles = [task.profile for task in tasks if task.profile is not None and task.profile.histogram_rho is not None]
    chances = [_chance_of_equal_counts(profile) for profile in profiles]
    if len(profiles) < 2 or max(chances) > ALPHA:
        report.not_checked("histogram.fresh_noise", "needs the histograms of two tasks with enough labels and noise")
        return
    distinct = {profile.label_counts for profile in profiles}
    wrong = "two tasks got the same label counts: no noise, or the same noise twice"
    report.expect("histogram.fresh_noise", len(distinct) == len(profiles), wrong)


def _chance_of_equal_counts(profile: Profile) -> float:
    """About the probability that the noise of two histograms leads to the same counts.

    Two draws are equal in a label with probability 1/(2σ√π), or because both were cut at 0. The sum fixes one label.
    """
    std = histogram_noise_std(rho=profile.histogram_rho or 1.0)
    cut = norm.sf(np.array(profile.label_counts) / std) ** 2
    chances = np.minimum(1.0, 1 / (2 * std * np.pi**0.5) + cut)
    return float(np.prod(np.sort(chances)[1:]))


# --- rounds ----------------------------------------------------------------------------------------------------------


def _check_budgets(report: ConformanceReport, task: PlayedTask) -> None:
    if task.profile is None:
        report.not_checked("budget.best_answer", "there is no profile")
        return
    wrong, right = [], 0
    for step in task.scenario.steps:
        declared = _declared(task, step.number)
        if step.attempt > 1 or step.number in (BOUNDED, PRICED_OUT, NOT_INVITED, GREEDY) or not declared:
            continue
        best = task.best(step)
        if abs(declared[0] - best) > _CLOSE * best:
            hint = " (or a limit of the owner is lower: raise it for this check)" if declared[0] < best else ""
            wrong.append(f"round {step.number}: declared {declared[0]:.6g}, best {best:.6g}{hint}")
        else:
            right += 1
    if wrong or right:
        report.expect("budget.best_answer", not wrong, "; ".join(wrong), f"in {right} rounds")
    else:
        report.fails("budget.best_answer", "the client declared no budget; raise its limits for this check")
    bound = next(step.rho_max for step in task.scenario.steps if step.number == BOUNDED)
    for check, number, limit, wrong_said in (
        ("budget.rho_max", BOUNDED, bound, "above the rho_max of the announcement"),
        ("budget.priced_out", PRICED_OUT, 0.0, "although no budget is worth it: it must decline"),
        ("budget.not_invited", NOT_INVITED, 0.0, "although the client is not invited"),
    ):
        declared = _declared(task, number)
        too_much = [rho for rho in declared if rho > (limit or 0.0) * (1 + _CLOSE)]
        report.expect(check, not too_much, f"declared {too_much[:1]} {wrong_said}")
    _check_lifetime(report, task)


def _check_lifetime(report: ConformanceReport, task: PlayedTask) -> None:
    """The last round offers far more than a client has left."""
    assert task.profile is not None
    profile = task.profile
    if profile.rho_cap is None and profile.lifetime_rho is None:
        report.not_checked("budget.caps", "the profile names neither rho_cap nor lifetime_rho")
        return
    sent = {update.number: _declared(task, update.number)[:1] for update in task.of_kind("update")}
    spent = (profile.histogram_rho or 0.0) + sum(rho for declared in sent.values() for rho in declared)
    largest = max((rho for number in range(1, GREEDY + 1) for rho in _declared(task, number)), default=0.0)
    wrong = []
    if profile.lifetime_rho is not None and spent > profile.lifetime_rho * (1 + _CLOSE):
        wrong.append(f"spent {spent:.6g} in all, above lifetime_rho {profile.lifetime_rho:.6g}")
    if profile.rho_cap is not None and largest > profile.rho_cap * (1 + _CLOSE):
        wrong.append(f"declared {largest:.6g} in a round, above rho_cap {profile.rho_cap:.6g}")
    report.expect("budget.caps", not wrong, "; ".join(wrong), f"spent {spent:.6g}, at most {largest:.6g} in a round")


def _check_uploads(report: ConformanceReport, task: PlayedTask) -> None:
    uploads = task.of_kind("update")
    if not uploads:
        report.fails("update.sent", "the client sent no update")
        return
    codes = {sent.code for sent in uploads}
    for code, wrong in _CODES_OF_UPLOADS.items():
        report.expect(f"update.{code}", code not in codes, wrong)
    report.expect("update.after_budget", "budget_missing" not in codes, "an update came before its budget")
    media = {sent.headers.get("content-type", "") for sent in uploads}
    report.expect("update.media_type", media == {"application/octet-stream"}, f"media type {', '.join(sorted(media))}")
    rounds = {sent.body: sent.number for sent in uploads}
    replayed = [sent.number for sent in uploads if rounds[sent.body] != sent.number]
    report.expect("update.not_replayed", not replayed, f"the bytes of round {replayed[:1]} came in another round too")
    accepted = {sent.number for sent in uploads if sent.status == 200}
    due = {step.number for step in task.scenario.steps if _must_deliver(task, step)}
    missing = ", ".join(map(str, sorted(due - accepted)))
    report.expect("update.every_round", not due - accepted, f"no update in round {missing}, although it was declared")
    report.expect("unknown_fields.ignored", bool(accepted), "no update was delivered; every answer had unknown fields")


def _must_deliver(task: PlayedTask, step: Any) -> bool:
    faults = (step.budget_fault, step.update_fault)
    return step.attempt == 1 and Fault.CLOSED not in faults and bool(_declared(task, step.number))


def _check_retries(report: ConformanceReport, task: PlayedTask) -> None:
    for step in task.scenario.steps:
        if step.attempt > 1:
            continue
        for kind, fault in (("budget", step.budget_fault), ("update", step.update_fault)):
            sent = task.of_kind(kind, step.number)
            if fault in (Fault.BUSY, Fault.LOST):
                _check_repeat(report, f"{kind}.repeated_after_{fault.value}", kind, sent)
            elif fault is Fault.CLOSED:
                _check_closed(report, task, kind, step.number)
    (again,) = [step for step in task.scenario.steps if step.attempt > 1]
    releases = {sent.body for sent in task.of_kind("update", again.number)}
    if releases:
        wrong = "a further attempt of a round got other bytes: a second release"
        report.expect("attempt.same_bytes", len(releases) == 1, wrong)
    else:
        report.not_checked("attempt.same_bytes", f"no update came in round {again.number}")


def _check_repeat(report: ConformanceReport, check: str, kind: str, sent: Sequence[Sent]) -> None:
    if not sent:
        report.not_checked(check, f"no {kind} came")
    elif len(sent) < 2:
        report.fails(check, f"the client did not repeat its {kind}")
    else:
        bodies = {sent.body if kind == "update" else json.dumps(_json(sent), sort_keys=True) for sent in sent}
        said = "new noise is a second release of the same records" if kind == "update" else "another answer"
        report.expect(check, len(bodies) == 1, f"the repeat had other bytes: {said}", "the same bytes")


def _check_closed(report: ConformanceReport, task: PlayedTask, kind: str, number: int) -> None:
    check = f"closed_round.{kind}"
    if not task.of_kind(kind, number):
        report.not_checked(check, f"no {kind} came in round {number}")
        return
    if kind == "budget":
        wrong = f"round {number} was closed before the budget, and an update came"
        report.expect(check, not task.of_kind("update", number), wrong)
        return
    uploads = [sent.body for sent in task.of_kind(kind, number)]
    # A client may ask again with the same bytes whether the coordinator has them.
    fits = len(set(uploads)) == 1 and len(uploads) <= _MOST_LATE_UPLOADS
    report.expect(
        check, fits, f"{len(uploads)} uploads of {len(set(uploads))} updates to round {number}, which is closed"
    )


def _check_statistics(report: ConformanceReport, task: PlayedTask) -> None:
    releases = releases_of(task)
    if releases:
        check_releases(report, releases, task.spec)
    else:
        for check in ("noise.size", "update.sign", "update.clipping"):
            report.not_checked(check, "there is no valid update")


def releases_of(task: PlayedTask) -> list[ReceivedUpdate]:
    """The first valid update of each round, with its budget."""
    found: dict[int, ReceivedUpdate] = {}
    for sent in task.of_kind("update"):
        declared = _declared(task, sent.number)
        if sent.number is None or sent.number in found or not declared or task.profile is None or sent.step is None:
            continue
        try:
            update = decode(sent.body, dimension=task.spec.dimension).astype(np.float64)
        except WireError:
            continue
        label = task.offered_label(sent.step.model)
        found[sent.number] = ReceivedUpdate(update=update, rho=declared[0], size=task.profile.size, label=label)
    return list(found.values())


# --- lies ------------------------------------------------------------------------------------------------------------


def _check_refusal(report: ConformanceReport, task: PlayedTask) -> None:
    """After a lie the client sends nothing that is computed from its records."""
    name = task.scenario.name
    check = f"refuses.{name}"
    if not task.touched:
        report.not_checked(check, "no client came")
        return
    budgets, updates = task.of_kind("budget"), task.of_kind("update")
    match name:
        case "clip-norm":
            reached, wrong = bool(task.of_kind("poll")), bool(budgets or updates)
        case "model-digest":
            reached, wrong = bool(task.of_kind("model")), bool(updates)
        case "other-model":
            reached, wrong = bool(updates), len({sent.body for sent in updates}) > 1
        case "spec-digest":
            reached, wrong = True, task.profile is not None
        case _:
            reached, wrong = True, bool(task.of_kind("profile"))
            report.expect("refuses.requirement_before_enrolment", not task.of_kind("enrol"), "the client enrolled")
    if not reached and not wrong:
        report.not_checked(check, "the client did not come that far")
        return
    report.expect(check, not wrong, f"the client went on after {task.scenario.tells}")


def _declared(task: PlayedTask, number: int | None) -> list[float]:
    """The budgets that a client sent for a round, without declines."""
    found = [_json(sent).get("rho") for sent in task.of_kind("budget", number)] if number is not None else []
    return [float(rho) for rho in found if isinstance(rho, int | float)]


def _json(sent: Sent) -> dict[str, Any]:
    try:
        value = json.loads(sent.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
