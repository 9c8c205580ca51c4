"""An environment with Flower and the bridge, made once and kept in the user's cache.

Flower's pins differ from ours, so it is never installed beside them. `QIDPFL_FLOWER_PYTHON` names the interpreter of an
environment that exists, as `make flower` creates one.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOWER = ROOT / "integrations" / "flower"
# Flower and ray report their use over the network unless told otherwise.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


class NoFlower(Exception):
    """Flower cannot be installed here; the message says why."""


@cache
def flower_python() -> Path:
    """The interpreter of the environment; makes it when it is first asked for. Raises `NoFlower`."""
    named = os.environ.get("QIDPFL_FLOWER_PYTHON")
    if named is not None:
        return Path(named)
    folder = _cache() / f"flower-{_digest()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        # Another process of the tests may make it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def environment(home: Path, **more: str) -> dict[str, str]:
    """The variables for a process of that environment, with its own home and nothing of ours on its path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("QIDPFL_", "PYTHON", "COVERAGE_"))}
    return kept | QUIET | {"HOME": str(home), "FLWR_HOME": str(home / "flwr")} | more


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qidpfl" / "tests"


def _digest() -> str:
    """What the environment depends on: the pins, the manifests, and the place of the editable packages."""
    manifests = (
        FLOWER / "constraints.txt",
        *(folder / "pyproject.toml" for folder in (FLOWER, ROOT / "shared", ROOT / "client")),
    )
    digest = hashlib.sha256(f"{ROOT} {sys.version}".encode())
    for file in manifests:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _make(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    index = subprocess.run(
        [sys.executable, str(ROOT / "docker" / "torch_index.py"), os.environ.get("TORCH_INDEX", _TORCH_INDEX)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    packages = (f"{ROOT}/shared[torch]", f"{ROOT}/client[train]", f"{FLOWER}[simulation]")
    editable = [part for package in packages for part in ("--editable", package)]
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *index]
    constraint = ("--constraint", str(FLOWER / "constraints.txt"))
    done = subprocess.run([*install, *constraint, *editable], capture_output=True, text=True)
    if done.returncode != 0:
        reasons = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("ERROR")]
        raise NoFlower(f"pip cannot install Flower: {next(iter(reasons), 'it gives no reason')}")
