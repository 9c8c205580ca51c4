"""The checks that `doctor` of server and client share. Each has a finding and, if something is wrong, a remedy."""

import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_OLDEST_PYTHON = (3, 11)
# Below this, a data set or a few models fill the disk.
_LITTLE_BYTES = 1 << 30


class CheckState(StrEnum):
    """How well a check has ended. Only `wrong` makes the command fail."""

    GOOD = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Check:
    """One finding, and what to do about it."""

    what: str
    state: CheckState
    finding: str
    remedy: str = ""


def python_check() -> Check:
    """Whether Python is new enough."""
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Check(
            "python", CheckState.WRONG, found, "install Python 3.11 or newer, then make setup PYTHON=python3.12"
        )
    return Check("python", CheckState.GOOD, found)


def versions_check(*distributions: str) -> Check:
    """Whether the distributions of this project have one version."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            return Check("versions", CheckState.WRONG, f"{name} is not installed", "make setup")
    listed = ", ".join(f"{name} {number}" for name, number in found.items())
    if len(set(found.values())) > 1:
        return Check("versions", CheckState.WRONG, listed, "install all of them in one version: make setup")
    return Check("versions", CheckState.GOOD, listed)


def torch_check(*, extra: str, needed: bool) -> Check:
    """Whether torch can be imported, and which devices it has."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        state = CheckState.WRONG if needed else CheckState.NOTE
        return Check("torch", state, "not installed", f"pip install '{extra}'")
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append(f"cuda ({torch.cuda.get_device_name(0)})")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return Check("torch", CheckState.GOOD, f"{torch.__version__}, devices: {', '.join(devices)}")


def disk_check(folder: Path) -> Check:
    """Whether a folder, or the nearest one above it, can be written and has room."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Check(
            "disk", CheckState.WRONG, f"{there} cannot be written", "choose another folder, or change its rights"
        )
    free = shutil.disk_usage(there).free
    found = f"{free / (1 << 30):.1f} GiB free in {there}"
    if free < _LITTLE_BYTES:
        return Check("disk", CheckState.NOTE, found, "free some space: models, updates and data sets are stored there")
    return Check("disk", CheckState.GOOD, found)


def report(checks: Iterable[Check], *, as_json: bool) -> bool:
    """Print the checks as they are made; returns whether none is wrong."""
    made = []
    for check in checks:
        made.append(check)
        if not as_json:
            print(f"{check.state.value:<6} {check.what:<12} {check.finding}", flush=True)
            if check.remedy:
                print(f"{'':<19} {check.remedy}")
    if as_json:
        print(json.dumps([asdict(check) for check in made], indent=2))
    return all(check.state is not CheckState.WRONG for check in made)
