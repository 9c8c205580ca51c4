"""The manifests for Kubernetes: as they are in their files, and as `kubectl kustomize` builds them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
Manifest = dict[str, Any]


def files() -> list[Path]:
    """All files with whole objects: neither patches nor the lists of kustomize."""
    found = sorted(FOLDER.rglob("*.yaml"))
    return [path for path in found if path.name != "kustomization.yaml" and not path.name.endswith(".patch.yaml")]


def parsed(text: str) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(text) if one]


def built(overlay: Path) -> list[Manifest]:
    """All objects of an overlay."""
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def can_build() -> bool:
    return shutil.which("kubectl") is not None


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The name and the template of each Pod."""
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]


def named(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def faults(objects: list[Manifest], given_secrets: frozenset[str] = frozenset()) -> Iterator[str]:
    """References to what is not there. `given_secrets` are made by the operator."""
    templates = dict(pods(objects))
    secrets, maps = {*named(objects, "Secret"), *given_secrets}, set(named(objects, "ConfigMap"))
    accounts = set(named(objects, "ServiceAccount"))
    for name, template in templates.items():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        claims = named(objects, "StatefulSet").get(name, {"spec": {}})["spec"].get("volumeClaimTemplates", ())
        known = {*volumes, *(claim["metadata"]["name"] for claim in claims)}
        used = [volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume]
        for container in spec["containers"]:
            sources = container.get("envFrom", ())
            used += [source["secretRef"]["name"] for source in sources if "secretRef" in source]
            missing = {source["configMapRef"]["name"] for source in sources if "configMapRef" in source} - maps
            yield from (f"{name}: no ConfigMap {one}" for one in missing)
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            yield from (f"{name}: {one} is mounted, and no volume" for one in mounted - known)
            yield from (f"{name}: {one} is a volume that nothing mounts" for one in known - mounted)
        yield from (f"{name}: no Secret {one}" for one in set(used) - secrets)
        if (account := spec.get("serviceAccountName")) is not None and account not in accounts:
            yield f"{name}: no ServiceAccount {account}"
    for kind in ("Deployment", "StatefulSet"):
        for name, one in named(objects, kind).items():
            if not _selects(one["spec"]["selector"]["matchLabels"], templates[name]):
                yield f"{kind} {name} does not select its own Pods"
    for name, service in named(objects, "Service").items():
        chosen = [template for template in templates.values() if _selects(service["spec"]["selector"], template)]
        ports = {port["name"] for template in chosen for port in _ports(template)}
        yield from (
            f"Service {name}: no port {port['targetPort']}"
            for port in service["spec"]["ports"]
            if port["targetPort"] not in ports
        )
    for kind, place in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for name, one in named(objects, kind).items():
            wanted = one["spec"][place].get("matchLabels", {})
            if not any(_selects(wanted, template) for template in templates.values()):
                yield f"{kind} {name} selects no Pod"
    for name, one in named(objects, "HorizontalPodAutoscaler").items():
        target = one["spec"]["scaleTargetRef"]
        if target["name"] not in named(objects, target["kind"]):
            yield f"HorizontalPodAutoscaler {name}: no {target['kind']} {target['name']}"
    for name, one in named(objects, "Ingress").items():
        for rule in one["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                if path["backend"]["service"]["name"] not in named(objects, "Service"):
                    yield f"Ingress {name}: no Service {path['backend']['service']['name']}"
        yield from (
            f"Ingress {name}: no Secret {tls['secretName']}"
            for tls in one["spec"]["tls"]
            if tls["secretName"] not in secrets
        )


def _selects(labels: dict[str, str], template: Manifest) -> bool:
    known: dict[str, str] = template["metadata"]["labels"]
    return labels.items() <= known.items()


def _ports(template: Manifest) -> list[Manifest]:
    return [port for container in template["spec"]["containers"] for port in container.get("ports", ())]
