"""The kit as a coordinator, and real client processes: correct ones pass, and each seeded bug is found by its check."""

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from qidpfl_client.conformance.play_coordinator import play_coordinator
from qidpfl_client.conformance.report import CheckVerdict, ConformanceReport
from support.peers.seeded_client import BUGS

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "docs" / "conformance" / "records.csv"
SEEDED = ROOT / "tests" / "support" / "peers" / "seeded_client.py"
NODE = shutil.which("node")
PROGRAM = Path(sys.executable).with_name("qidpfl-client")

# For each bug: the tasks of the kit that it needs, and the check that must find it.
FOUND_BY = {
    "wrong_sign": (["rounds"], "update.sign"),
    "first_model": (["rounds"], "update.sign"),
    "half_noise": (["rounds"], "noise.size"),
    "no_noise": (["rounds"], "noise.size"),
    "double_noise": (["rounds"], "noise.size"),
    "same_noise": (["rounds"], "noise.size"),
    "clips_the_mean": (["rounds"], "update.clipping"),
    "sum_of_gradients": (["rounds"], "update.clipping"),
    "renoised_retry": (["rounds"], "update.repeated_after_lost"),
    "renoised_histogram": (["rounds"], "profile.repeated"),
    "exact_histogram": (["clip-norm", "other-model"], "histogram.fresh_noise"),
    "uneven_histogram": (["rounds"], "profile.adds_up"),
    "no_digest": (["rounds"], "update.digest_required"),
    "wrong_digest": (["rounds"], "update.digest_mismatch"),
    "half_budget": (["rounds"], "budget.best_answer"),
    "above_rho_max": (["rounds"], "budget.rho_max"),
    "above_caps": (["rounds"], "budget.caps"),
    "takes_every_offer": (["rounds"], "budget.priced_out"),
    "answers_uninvited": (["rounds"], "budget.not_invited"),
    "uploads_to_closed": (["rounds"], "closed_round.budget"),
    "repeats_closed": (["rounds"], "closed_round.update"),
    "new_attempt": (["rounds"], "attempt.same_bytes"),
    "new_key": (["rounds"], "enrol.repeated"),
    "impatient": (["rounds"], "retry.waits"),
    "gives_up": (["rounds"], "enrol.repeated"),
    "strict_fields": (["rounds"], "profile.sent"),
    "announced_clip_norm": (["clip-norm"], "refuses.clip-norm"),
    "any_model": (["model-digest"], "refuses.model-digest"),
    "other_model": (["other-model"], "refuses.other-model"),
    "unpinned_spec": (["spec-digest"], "refuses.spec-digest"),
    "ignores_requirements": (["requirement"], "refuses.requirement"),
}
# The others run with `make test-long`.
QUICK = {
    *("wrong_sign", "half_noise", "renoised_retry", "clips_the_mean", "half_budget", "wrong_digest"),
    *("announced_clip_norm", "any_model", "other_model", "unpinned_spec", "ignores_requirements"),
}


def judged(bug: str, tasks: list[str]) -> ConformanceReport:
    run = f"{sys.executable} {SEEDED} {{url}} {RECORDS} {bug}"
    return play_coordinator(host="127.0.0.1", port=0, tasks=tasks, run=run, wait_s=60, say=lambda _: None)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> dict[str, Future[ConformanceReport]]:
    """The reports of the bugs whose tests are selected. They are clients of different kits, at the same time."""
    selected = {
        item.callspec.params.get("bug")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(8) as pool:
        return {bug: pool.submit(judged, bug, tasks) for bug, (tasks, _) in FOUND_BY.items() if bug in selected}


def test_every_bug_has_its_check() -> None:
    assert set(FOUND_BY) == set(BUGS)


@pytest.mark.parametrize(
    "bug", [bug if bug in QUICK else pytest.param(bug, marks=pytest.mark.long) for bug in FOUND_BY]
)
def test_a_seeded_bug_is_found(bug: str, reports: dict[str, Future[ConformanceReport]]) -> None:
    report = reports[bug].result()
    failing = {finding.check for finding in report.findings if finding.verdict is CheckVerdict.FAILS}
    assert FOUND_BY[bug][1] in failing and not report.passed, report.findings


def conform(run: str, *options: str) -> dict[str, dict[str, str]]:
    """The findings of `qidpfl-client conform --play coordinator`, as its own process; fails unless it passes."""
    command: list[str | Path] = [PROGRAM, "conform", "--play", "coordinator", "--run", run, "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    report = json.loads(ended.stdout)
    failing = [finding for finding in report["findings"] if finding["verdict"] != "holds"]
    assert ended.returncode == 0 and report["passed"] and not failing, (failing, ended.stderr)
    return {finding["check"]: finding for finding in report["findings"]}


def test_the_correct_client_passes_every_check() -> None:
    findings = conform(f"{sys.executable} {SEEDED} {{url}} {RECORDS} none")
    # Every check that finds a bug is one of those that hold here, apart from the one that replaces missing profiles.
    assert {check for _, check in FOUND_BY.values()} - set(findings) == {"profile.sent"}


@pytest.mark.skipif(NODE is None, reason="Node 20 or later is not installed")
def test_the_node_example_passes() -> None:
    conform(f"{NODE} {ROOT}/examples/custom_client.mjs {{url}} {{code_file}} {RECORDS} {{folder}}/state")


@pytest.mark.long
def test_the_python_example_passes() -> None:
    conform(f"{sys.executable} {ROOT}/examples/custom_client.py {{url}}")


@pytest.mark.long
def test_the_client_of_this_project_passes() -> None:
    conform(f"{PROGRAM} run --server {{url}} --code-file {{code_file}} --journal {{folder}}/journal")


def test_a_user_starts_the_client_with_the_printed_address_and_code() -> None:
    command: list[str | Path] = [PROGRAM, "conform", "--play", "coordinator", "--task", "requirement"]
    kit = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert kit.stderr is not None and kit.stdout is not None
    url = kit.stderr.readline().split("listening at ")[1].split(";")[0]
    code = kit.stderr.readline().split()[1]
    started = time.monotonic()
    client: list[str | Path] = [sys.executable, SEEDED, url, RECORDS, "ignores_requirements"]
    subprocess.run(client, input=f"{code}\n", text=True, capture_output=True, timeout=60, check=False)
    said, _ = kit.communicate(timeout=60)
    assert kit.returncode == 1 and "2 fail" in said and "refuses.requirement" in said
    assert time.monotonic() - started < 50


def test_a_client_that_does_not_come_is_not_conforming() -> None:
    report = play_coordinator(
        host="127.0.0.1", port=0, tasks=["rounds"], run=f"{sys.executable} -c pass", wait_s=5, say=lambda _: None
    )
    assert not report.passed and {finding.verdict for finding in report.findings} == {CheckVerdict.NOT_CHECKED}
