"""The OpenAPI document for tools: linters find nothing, and generated clients work.

The tools come from npm and PyPI in the versions below. Where they cannot be installed the tests say so and are skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.coordinators import Coordinator
from support.openapi_document import document

pytestmark = [pytest.mark.long, pytest.mark.live]
ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
NPM = {
    "@redocly/cli": "2.77.0",
    "@stoplight/spectral-cli": "6.16.3",
    "openapi-typescript": "7.13.0",
    "typescript": "5.9.3",
}
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "NO_COLOR": "1"}
TYPES = """
import type { components, operations, paths } from "./api";
type Offer = components["schemas"]["RoundOffer"];
type Enrol = operations["enrol"]["requestBody"]["content"]["application/json"];
type Receipt = paths["/v1/tasks/{task_id}/rounds/{round_number}/update"]["put"]["responses"][200];
const body: Enrol = { enrolment_code: "a.b", enrolment_key: "k" };
// @ts-expect-error: the key is required
const wrong: Enrol = { enrolment_code: "a.b" };
export const rho = (offer: Offer, value: number, weight: number): number =>
  Math.min(offer.rho_max, offer.total - (weight * value * offer.total ** 2 * 1e6) / offer.reward_micro);
export const name = (mechanism: components["schemas"]["PrivacySpec"]["mechanism"]): number =>
  mechanism.name === "bolt_on" ? mechanism.feature_norm : mechanism.clip_norm;
export type { Receipt };
export { body, wrong };
"""
# One round of a task with three clients, by the generated functions alone.
PLAYS = """
import base64, hashlib, io, sys
import numpy as np
from generated import AuthenticatedClient, Client
from generated.api.clients import enrol, get_announcement, get_ledger, put_budget, put_profile, put_update
from generated.api.reading import get_model, get_task
from generated.models import Declaration, EnrolRequest, Profile
from generated.types import File

url, task_id, code = sys.argv[1:]
members = []
for number in range(3):
    request = EnrolRequest(enrolment_code=code, enrolment_key=f"key-of-generated-client-{number}")
    answer = enrol.sync(task_id, client=Client(base_url=url), body=request)
    client = AuthenticatedClient(base_url=url, token=answer.token)
    profile = Profile(label_counts=[11] * 10, size=110, privacy_value=1.0, histogram_rho=0.1)
    assert put_profile.sync(task_id, client=client, body=profile).client_id == answer.client_id
    members.append(client)
spec = get_task.sync(task_id, client=members[0]).spec
assert spec.privacy.mechanism.name == "gradient_once" and spec.requires[0] == "mechanism.gradient_once"
for client in members:
    offer = get_announcement.sync(task_id, client=client, wait=30).round_
    rho = offer.total - spec.game.privacy_weight * offer.total**2 * 1e6 / offer.reward_micro
    receipt = put_budget.sync(task_id, offer.round_number, client=client, body=Declaration(rho=min(rho, offer.rho_max)))
    model = np.frombuffer(get_model.sync(task_id, offer.model_version, client=client).payload.read(), "<f4")
    std = 2 * spec.privacy.mechanism.clip_norm / (110 * np.sqrt(2 * receipt.rho))
    data = np.random.default_rng().normal(0, std, model.size).astype("<f4").tobytes()
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    stored = put_update.sync(
        task_id, 1, client=client, body=File(payload=io.BytesIO(data)), content_digest=f"sha-256=:{digest}:"
    )
    assert stored.digest == hashlib.sha256(data).hexdigest()
for client in members:
    while get_announcement.sync(task_id, client=client, after="1.1", wait=30).task_state != "finished":
        pass
    assert get_ledger.sync(task_id, client=client).earned_micro > 0
print("paid")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the document."""
    made = tmp_path_factory.mktemp("document")
    (made / "openapi.json").write_text(json.dumps(document(), indent=1))
    return made


@pytest.fixture(scope="module")
def npm(folder: Path) -> Iterator[Path]:
    """The folder of the commands that npm has installed."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    packages = [f"{name}@{version}" for name, version in NPM.items()]
    options = ("--no-audit", "--no-fund", "--ignore-scripts")
    done = subprocess.run(["npm", "install", *options, *packages], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the tools: {done.stderr.strip().splitlines()[-1:]}")
    yield folder / "node_modules" / ".bin"


def run(folder: Path, *command: str | Path, path: str = "") -> str:
    environment = os.environ | QUIET | ({"PYTHONPATH": path} if path else {})
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_redocly_finds_nothing(folder: Path, npm: Path) -> None:
    config = DATA / "redocly.yaml"
    said = run(folder, npm / "redocly", "lint", "openapi.json", "--config", config, "--format", "summary")
    assert "warning" not in said.partition("validating")[2].lower(), said


def test_spectral_finds_nothing(folder: Path, npm: Path) -> None:
    config = DATA / "spectral.yaml"
    run(folder, npm / "spectral", "lint", "openapi.json", "--ruleset", config, "--fail-severity", "warn")


def test_the_types_of_a_typescript_client_fit(folder: Path, npm: Path) -> None:
    run(folder, npm / "openapi-typescript", "openapi.json", "--output", "api.d.ts")
    (folder / "client.ts").write_text(TYPES)
    run(folder, npm / "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "client.ts")


def test_a_generated_python_client_is_paid(folder: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), PYTHON_GENERATOR]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {PYTHON_GENERATOR}: {done.stderr.strip().splitlines()[-1:]}")
    generate = ("-m", "openapi_python_client", "generate", "--path", "openapi.json", "--meta", "none")
    run(folder, sys.executable, *generate, "--output-path", str(tmp_path / "generated"), path=str(tools))
    (tmp_path / "plays.py").write_text(PLAYS)
    with Coordinator(tmp_path / "state") as coordinator:
        task_id, code = coordinator.create_task(
            game={"horizon": 1}, rounds={"expected_clients": 3, "min_clients": 3, "min_updates": 3}
        )
        script = (tmp_path / "plays.py", coordinator.url, task_id, code)
        assert "paid" in run(tmp_path, sys.executable, *script, path=f"{tmp_path}{os.pathsep}{tools}")
