"""The manifests for Kubernetes: valid, restricted, without a reference to nothing, and with what the images need."""

import re
import shutil
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.settings import Settings
from support.manifests import FOLDER, ROOT, Manifest, built, can_build, faults, files, named, parsed, pods

pytestmark = pytest.mark.slow

# What docs/kubernetes.md tells the operator to make.
GIVEN = frozenset({"coordinator-secrets", "coordinator-store", "coordinator-bucket", "coordinator-tls"})
BUILDS = pytest.mark.skipif(not can_build(), reason="kubectl is not installed")
OVERLAYS = pytest.mark.parametrize("overlay", ["testbed", "production"])


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests with the secrets of the testbed, which `make kubernetes` makes."""
    folder = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("secrets"))
    make_secrets(folder)
    return folder


def make_secrets(folder: Path) -> None:
    program = Path(sys.executable).with_name("qidpfl-server")
    script = folder / "overlays" / "testbed" / "make-secrets"
    done = subprocess.run([str(script), str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@cache
def objects(folder: Path, overlay: str) -> list[Manifest]:
    return built(folder / "overlays" / overlay)


def whole(folder: Path) -> list[list[Manifest]]:
    """Each overlay as it is applied; without kubectl all files together."""
    if can_build():
        return [objects(folder, overlay) for overlay in ("testbed", "production")]
    return [[one for path in files() for one in parsed(path.read_text())]]


def refusals(one: Manifest) -> list[str]:
    """What the schema of Kubernetes says against an object, fields that it does not know included."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{one['kind']} {one['metadata']['name']}: {error.message}"]
    return []


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_object_of_a_file_fits_the_schema(path: Path) -> None:
    found = parsed(path.read_text())
    assert found
    assert [refusal for one in found for refusal in refusals(one)] == []


@BUILDS
@OVERLAYS
def test_every_object_that_kubectl_builds_fits_the_schema(copied: Path, overlay: str) -> None:
    assert [refusal for one in objects(copied, overlay) for refusal in refusals(one)] == []


def test_a_misspelt_field_does_not_fit_the_schema() -> None:
    (deployment,) = named(parsed((FOLDER / "base/coordinator.yaml").read_text()), "Deployment").values()
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    assert len(refusals(deployment)) == 1


@BUILDS
@OVERLAYS
def test_every_reference_leads_to_something(copied: Path, overlay: str) -> None:
    given = GIVEN if overlay == "production" else frozenset()
    assert list(faults(objects(copied, overlay), given)) == []


@BUILDS
@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("Service", lambda one: one["spec"]["ports"][0].update(targetPort="web"), "no port web"),
        ("PodDisruptionBudget", lambda one: one["spec"]["selector"]["matchLabels"].update(a="b"), "selects no Pod"),
        ("HorizontalPodAutoscaler", lambda one: one["spec"]["scaleTargetRef"].update(name="other"), "no Deployment"),
        ("Secret", lambda one: one["metadata"].update(name="other"), "no Secret"),
        ("ConfigMap", lambda one: one["metadata"].update(name="other"), "no ConfigMap"),
    ],
)
def test_a_reference_to_nothing_is_found(copied: Path, kind: str, change: Any, said: str) -> None:
    broken = deepcopy(objects(copied, "testbed"))
    change(next(one for one in broken if one["kind"] == kind))
    assert any(said in fault for fault in faults(broken))


def test_every_pod_is_restricted(copied: Path) -> None:
    for name, template in (pod for one in whole(copied) for pod in pods(one)):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        # Kubernetes would set variables such as COORDINATOR_PORT.
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize(("pod", "image"), [("coordinator", "server"), ("clients", "client")])
def test_a_pod_has_the_user_and_the_folders_of_its_image(copied: Path, pod: str, image: str) -> None:
    dockerfile = (ROOT / f"Dockerfile.{image}").read_text()
    (user,) = re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)
    template = next(dict(pods(one))[pod] for one in whole(copied))
    context = template["spec"]["securityContext"]
    assert {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    # What the program writes to: its root is read-only.
    written = re.findall(r"(?:HOME|QIDPFL_STATE_DIR|QIDPFL_JOURNAL)=(/\w+)", dockerfile)
    assert len(written) == 2 and set(written) <= mounts


def test_every_variable_of_the_coordinator_is_a_setting(copied: Path) -> None:
    """QIDPFL_BLOBS belongs to the object store."""
    config = named(whole(copied)[-1], "ConfigMap")["coordinator"]["data"]
    known = {f"QIDPFL_{name.upper()}" for name in Settings.model_fields} | {"QIDPFL_BLOBS"}
    assert set(config) <= known
    text = (FOLDER / "overlays/testbed/make-secrets").read_text()
    assert set(re.findall(r"\bQIDPFL_\w+", text)) <= known


def test_the_pod_lives_longer_than_its_drain_and_its_shutdown(copied: Path) -> None:
    for found in whole(copied):
        config = named(found, "ConfigMap")["coordinator"]["data"]
        spec = dict(pods(found))["coordinator"]["spec"]
        probe = spec["containers"][0]["readinessProbe"]
        drain_s, shutdown_s = float(config["QIDPFL_DRAIN_S"]), float(config["QIDPFL_SHUTDOWN_TIMEOUT_S"])
        assert drain_s + shutdown_s < spec["terminationGracePeriodSeconds"]
        assert probe["periodSeconds"] * probe["failureThreshold"] < drain_s


def test_each_index_of_the_job_has_a_place_in_the_task(copied: Path) -> None:
    found = whole(copied)[0]
    job = named(found, "Job")["clients"]["spec"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    text = (FOLDER / "overlays/testbed/coordinator.patch.yaml").read_text()
    assert f"--clients={job['completions']}" in text
    # The place of the index, and not the next free one.
    assert "--ordinal=$(JOB_COMPLETION_INDEX)" in job["template"]["spec"]["containers"][0]["args"]


def test_secrets_are_made_once_and_are_for_the_operator_only(copied: Path) -> None:
    folder = copied / "overlays" / "testbed" / "secrets"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    make_secrets(copied)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    ignored = subprocess.run(
        ["git", "check-ignore", "deploy/kubernetes/overlays/testbed/secrets/admin.token"], cwd=ROOT, check=False
    )
    assert ignored.returncode == 0 or not (ROOT / ".git").exists()


@BUILDS
def test_no_secret_is_in_the_production_overlay(copied: Path) -> None:
    assert named(objects(copied, "production"), "Secret") == {}


def test_every_file_of_the_folder_belongs_to_an_overlay() -> None:
    listed = set()
    for path in FOLDER.rglob("kustomization.yaml"):
        (said,) = parsed(path.read_text())
        used = [*said["resources"], *(patch["path"] for patch in said.get("patches", ()))]
        listed |= {(path.parent / name).resolve() for name in used}
    whole_files = {*files(), *FOLDER.rglob("*.patch.yaml")}
    assert {path.resolve() for path in whole_files} == {path for path in listed if path.is_file()}
