"""An environment with Ray on top of this one, made once and kept in the user's cache: Ray is a wheel of 80 MB.

`QIDPFL_RAY_PYTHON` names the interpreter of an environment that exists, with Ray and the packages of the project.
"""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PINS = ROOT / "constraints.txt"


class NoRay(Exception):
    """Ray cannot be installed here; the message says why."""


@cache
def ray_python() -> Path:
    """The interpreter of the environment; makes it when it is first asked for. Raises `NoRay`."""
    named = os.environ.get("QIDPFL_RAY_PYTHON")
    if named is not None:
        return Path(named)
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable)
    cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qidpfl" / "tests"
    folder = cache_dir / f"ray-{_digest()}"
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / f"{folder.name}.lock").open("w") as lock:
        # Another process of the tests may make it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _digest() -> str:
    """What the environment depends on: the pins, the interpreter, and the packages below it."""
    about = f"{sys.version} {sysconfig.get_path('purelib')}".encode()
    return hashlib.sha256(about + _PINS.read_bytes()).hexdigest()[:16]


def _make(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # Its packages, and those that they name in files of their own, as editable ones do.
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(site) / "below.pth").write_text(below)
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", str(_PINS), "ray"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reasons = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("ERROR")]
        raise NoRay(f"pip cannot install Ray: {next(iter(reasons), 'it gives no reason')}")
