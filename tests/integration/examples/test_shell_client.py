"""The client in docs/clients.md, unchanged, against a live coordinator and against the conformance kit."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.conformance.play_coordinator import play_coordinator
from qidpfl_client.conformance.report import CheckVerdict
from support.coordinators import running

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "docs" / "clients.md"


def documented_client() -> str:
    """The one block of shell in the document."""
    (script,) = re.findall(r"^```sh\n(.*?)^```$", CLIENTS.read_text(), re.MULTILINE | re.DOTALL)
    return str(script)


def test_three_shells_with_the_documented_client_finish_a_task_and_are_paid(tmp_path: Path) -> None:
    script, code_file = tmp_path / "client.sh", tmp_path / "code"
    script.write_text(documented_client())
    with running(tmp_path / "state") as coordinator:
        # The audit may accuse an honest client by chance, but not in the lifetime of this test.
        task_id, code = coordinator.create_task(
            game={"horizon": 2}, rounds={"expected_clients": 3}, privacy={"audit_alpha": 1e-9}
        )
        code_file.write_text(code)
        shells = [
            subprocess.Popen(
                ["sh", script, coordinator.url, code_file, tmp_path / f"shell-{number}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(3)
        ]
        ended = [shell.communicate(timeout=120) for shell in shells]
        assert [shell.returncode for shell in shells] == [0, 0, 0], ended
        with coordinator.admin as http:
            task = http.get(f"/v1/tasks/{task_id}").json()
            rounds = [http.get(f"/v1/tasks/{task_id}/rounds/{number}").json() for number in (1, 2)]
        assert "0 violated" in coordinator.audit()

    assert (task["state"], task["reason"], task["clients"]) == ("finished", "horizon_reached", 3)
    ledgers = [json.loads(said) for said, _ in ended]
    assert sum(ledger["earned_micro"] for ledger in ledgers) == task["paid_micro"] > 0
    for ledger in ledgers:
        assert [entry["release"] for entry in ledger["entries"]] == ["histogram", "round/1", "round/2"]
        assert all(entry["payment_micro"] > 0 for entry in ledger["entries"][1:])
    for round_ in rounds:
        assert round_["kept_micro"] == 0
        assert all(client["verdict"] in ("consistent", "undecidable") for client in round_["clients"])
        # Each client gave the best answer, as planned: no other budget would have earned it more.
        assert all(client["regret"] < 1e-6 for client in round_["clients"])


@pytest.mark.long
def test_a_shell_started_again_in_its_folder_goes_on_as_the_same_client(tmp_path: Path) -> None:
    script, code_file = tmp_path / "client.sh", tmp_path / "code"
    script.write_text(documented_client())
    with running(tmp_path / "state") as coordinator:
        task_id, code = coordinator.create_task(game={"horizon": 2}, rounds={"expected_clients": 3})
        code_file.write_text(code)

        def start(number: int) -> subprocess.Popen[str]:
            command = ["sh", str(script), coordinator.url, str(code_file), str(tmp_path / f"shell-{number}")]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        with start(0) as first:
            while not (tmp_path / "shell-0" / "auth").exists():
                assert first.poll() is None
            first.kill()
        shells = [start(number) for number in range(3)]
        ledgers = [json.loads(shell.communicate(timeout=120)[0]) for shell in shells]
        with coordinator.admin as http:
            task = http.get(f"/v1/tasks/{task_id}").json()
    assert (task["state"], task["clients"]) == ("finished", 3)
    assert all(ledger["earned_micro"] > 0 for ledger in ledgers)


def helper() -> dict[str, Any]:
    """The functions of the script's Python, without the call at its end."""
    (text,) = re.findall(r"<< 'PYTHON'\n(.*?)^PYTHON$", documented_client(), re.MULTILINE | re.DOTALL)
    functions, _, call = text.rpartition("globals()")
    assert call.startswith("[sys.argv[1]]")
    found: dict[str, Any] = {}
    exec(functions, found)
    return found


def test_the_documented_client_writes_canonical_json_like_the_golden_vectors() -> None:
    canonical = helper()["canonical"]
    cases = json.loads((ROOT / "docs/conformance/canonical-json.json").read_text())["cases"]
    for case in cases:
        assert canonical(case["given"]["value"]) == case["expected"]["canonical"]


def test_the_documented_client_cleans_its_label_counts_like_the_golden_vectors() -> None:
    functions = helper()
    for case in json.loads((ROOT / "docs/conformance/histogram.json").read_text())["cases"]:
        if "noisy_counts" in case["given"]:
            functions["SIZE"] = case["given"]["size"]
            assert functions["clean"](case["given"]["noisy_counts"]) == case["expected"]["label_counts"]


def test_the_documented_client_covers_the_same_fields_with_signatures_as_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    signed = helper()["signed"]
    for case in json.loads((ROOT / "docs/conformance/signed-message.json").read_text())["cases"]:
        signed(case["given"]["kind"], dict(case["given"]["served"]))
        assert Path("signed").read_text() == case["expected"]["signed_text"]


def test_the_documented_client_needs_only_three_programs() -> None:
    script = documented_client()
    assert len(script.splitlines()) <= 240
    assert not re.search(r"\b(jq|perl|xxd|pip|numpy|bash)\b", script)


def test_the_documented_client_believes_no_lie_of_the_conformance_kit(tmp_path: Path) -> None:
    script = tmp_path / "client.sh"
    script.write_text(documented_client())
    command = f"sh {script} {{url}} {{code_file}} {{folder}}/state"
    lies = ["clip-norm", "other-model", "model-digest", "spec-digest", "requirement"]
    report = play_coordinator(host="127.0.0.1", port=0, tasks=lies, run=command, wait_s=60, say=lambda _: None)
    wrong = [finding for finding in report.findings if finding.verdict is CheckVerdict.FAILS]
    held = {finding.check for finding in report.findings if finding.verdict is CheckVerdict.HOLDS}
    assert not wrong and held >= {f"refuses.{lie}" for lie in lies}
