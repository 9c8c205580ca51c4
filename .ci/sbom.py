"""Write a software bill of materials (CycloneDX 1.6, JSON) for each built distribution, and check it.

    python .ci/sbom.py --site SITE_PACKAGES --out dist VERSION NAME...        `make release` calls it

Each file lists everything that the distribution brings into the environment of SITE_PACKAGES, with versions, licences
and who needs what. Needs `packaging`.
"""

import argparse
import hashlib
import json
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Installed = dict[str, Distribution]


def requirements(package: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """What a package needs here, with these extras."""
    for line in package.requires or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield needed


def closure(installed: Installed, name: str) -> dict[str, set[str]]:
    """Everything that a distribution needs, and which packages each of them needs."""
    graph: dict[str, set[str]] = {}
    seen: dict[str, frozenset[str]] = {}
    waiting = [(name, frozenset[str]())]
    while waiting:
        package, extras = waiting.pop()
        if package in seen and extras <= seen[package]:
            continue
        extras = seen[package] = seen.get(package, frozenset()) | extras
        if package not in installed:
            raise SystemExit(f"{package} is needed but not installed")
        for needed in requirements(installed[package], extras):
            target = canonicalize_name(needed.name)
            graph.setdefault(package, set()).add(target)
            waiting.append((target, frozenset(needed.extras)))
        graph.setdefault(package, set())
    return graph


def reference(package: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(package.name)}@{package.version}"


def licences(package: Distribution) -> list[dict[str, Any]]:
    meta = package.metadata
    if expression := meta.get("License-Expression"):
        return [{"expression": expression}]
    text = (meta.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= 100:
        return [{"license": {"name": text}}]
    named = [one.rpartition(" :: ")[2] for one in meta.get_all("Classifier") or () if one.startswith("License ::")]
    return [{"license": {"name": name}} for name in named]


def component(package: Distribution, kind: str) -> dict[str, Any]:
    found = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "purl": reference(package),
    }
    return found | ({"licenses": licences(package)} if licences(package) else {})


def bill(installed: Installed, name: str, wheel: Path | None) -> dict[str, Any]:
    """The bill of materials of one distribution; with the hash of its wheel, if there is one."""
    graph = closure(installed, name)
    main = component(installed[name], "application")
    if wheel is not None:
        main["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main},
        "components": [component(installed[one], "library") for one in sorted(graph) if one != name],
        "dependencies": [
            {"ref": reference(installed[one]), "dependsOn": sorted(reference(installed[other]) for other in needed)}
            for one, needed in sorted(graph.items())
        ],
    }


def problems(found: dict[str, Any], version: str) -> Iterator[str]:
    """What is wrong with a bill of materials."""
    main = found["metadata"]["component"]
    references = [one["bom-ref"] for one in (main, *found["components"])]
    if main["version"] != version:
        yield f"{main['name']} has version {main['version']}, not {version}"
    if len(set(references)) != len(references):
        yield "a package is listed twice"
    if [one["ref"] for one in found["dependencies"]] != sorted(references, key=lambda one: one.partition("@")[0]):
        yield "packages and dependencies differ"
    known = set(references)
    yield from (
        f"{other} is needed but not listed" for one in found["dependencies"] for other in {*one["dependsOn"]} - known
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--site", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("version")
    options.add_argument("names", nargs="+")
    given = options.parse_args()
    installed = {canonicalize_name(one.name): one for one in distributions(path=[str(given.site)])}
    for short in given.names:
        # The distribution of the folder `qidpfl` has its name, the others have it as a prefix.
        name = "qidpfl" if short == "qidpfl" else f"qidpfl_{short}"
        wheel = given.out / f"{name}-{given.version}-py3-none-any.whl"
        found = bill(installed, canonicalize_name(name), wheel if wheel.is_file() else None)
        if wrong := list(problems(found, given.version)):
            sys.exit("; ".join(wrong))
        path = given.out / f"{name}-{given.version}.cdx.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{path}: {len(found['components'])} packages")


if __name__ == "__main__":
    main()
