"""Pinned versions, their hashes, the lists of the images, and the bill of materials agree with each other."""

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PINS = re.findall(r"^(\S+==\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
HASHED = re.findall(r"^(\S+==\S+) \\$", (ROOT / "constraints.hashes.txt").read_text(), re.MULTILINE)
CHOSEN = {"torch", "torchvision"}
DISTRIBUTIONS = ("shared", "server", "client", "experiments", "qidpfl")


def name_of(pin: str) -> str:
    return pin.partition("==")[0]


def listed(*arguments: str) -> list[str]:
    command = [sys.executable, "docker/requirements.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_every_pin_but_torch_has_hashes() -> None:
    """After a change of constraints.txt run `make hashes`."""
    assert [pin for pin in PINS if name_of(pin) not in CHOSEN] == HASHED
    blocks = (ROOT / "constraints.hashes.txt").read_text().split("\n    --hash=")
    assert all(re.match(r"sha256:[0-9a-f]{64}( \\)?(\n\S+==\S+ \\)?\n?$", block) for block in blocks[1:])


@pytest.mark.parametrize("layer", ["pip", "build", "shared", "torch"])
def test_a_layer_of_the_images_has_exact_versions_with_hashes(layer: str) -> None:
    lines = listed("--layer", layer)
    pins = [line.removesuffix(" \\") for line in lines if "==" in line]
    assert pins and set(pins) <= set(HASHED) and not CHOSEN & set(map(name_of, pins))
    assert sum("--hash=sha256:" in line for line in lines) == len(lines) - len(pins) >= len(pins)


def test_torch_comes_without_a_hash_from_the_chosen_index() -> None:
    assert [name_of(pin) for pin in listed("--torch")] == sorted(CHOSEN)
    assert set(listed("--torch")) <= set(PINS)


@pytest.mark.parametrize("name", ["Dockerfile.server", "Dockerfile.client"])
def test_an_image_installs_only_what_has_a_hash(name: str) -> None:
    """Every other `pip install` takes no package from an index."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    for command in re.findall(r"pip install [^&\n]+", text):
        assert "--require-hashes" in command or ("--no-deps" in command and "./shared" in command)
    assert len(re.findall(r"^FROM \$\{BASE\}", text, re.MULTILINE)) == 2
    script = (ROOT / "docker/install").read_text()
    unhashed = [line for line in re.findall(r"^ *install .*$", script, re.MULTILINE) if "--require-hashes" not in line]
    assert len(unhashed) == 1 and "torch-wheels.txt" in unhashed[0]


@pytest.mark.slow
def test_the_bill_of_materials_lists_everything_that_is_needed(tmp_path: Path) -> None:
    version = (ROOT / "VERSION").read_text().strip()
    site = sysconfig.get_path("purelib")
    command = [sys.executable, str(ROOT / ".ci/sbom.py"), "--site", site, "--out", str(tmp_path), version]
    subprocess.run([*command, *DISTRIBUTIONS], check=True, capture_output=True)
    needed = {
        "shared": {"numpy", "scipy", "pydantic"},
        "server": {"fastapi", "starlette", "uvicorn", "sqlalchemy", "qidpfl-shared", "numpy"},
        "client": {"httpx", "stamina", "tenacity", "qidpfl-shared"},
        "experiments": {"torch", "torchvision", "scikit-learn", "matplotlib", "qidpfl-server", "qidpfl-client"},
        "qidpfl": {"qidpfl-experiments", "qidpfl-server", "qidpfl-client", "matplotlib", "torch"},
    }
    pins = {re.sub(r"[-_.]+", "-", name_of(pin)).lower(): pin.partition("==")[2] for pin in PINS}
    for name in DISTRIBUTIONS:
        distribution = "qidpfl" if name == "qidpfl" else f"qidpfl-{name}"
        bill = json.loads((tmp_path / f"{distribution.replace('-', '_')}-{version}.cdx.json").read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/{distribution}@{version}"
        found = dict(one["purl"].removeprefix("pkg:pypi/").split("@") for one in bill["components"])
        assert needed[name] <= set(found) and "pytest" not in found
        for package, installed in found.items():
            # torch brings setuptools, as its index has it.
            if not package.startswith(("qidpfl-", "torch", "setuptools")):
                assert installed == pins[package], package


def test_setup_without_a_network_is_one_readable_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}/simple"
        alone = {
            "PIP_INDEX_URL": f"http://user:secret@{host}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_RETRIES": "1",
            "PIP_FIND_LINKS": "",
        }
        command = [sys.executable, ".ci/pip_install.py", "--dry-run", "qidpfl-no-such-package"]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"setup: the package index http://{host} does not answer (")


def test_other_failures_of_setup_are_those_of_pip(tmp_path: Path) -> None:
    alone = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}
    command = [sys.executable, ".ci/pip_install.py", "--dry-run", "qidpfl-no-such-package"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True)
    assert done.returncode == 1 and "No matching distribution found for qidpfl-no-such-package" in done.stderr
