"""A coordinator of an earlier revision of this repository, in the environment of the present one."""

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from support.coordinators import Coordinator

ROOT = Path(__file__).parent.parent.parent
# The revision that the next release must run beside: that of the last one.
REVISION = (ROOT / "tests/data/predecessor.txt").read_text().strip()


class NoHistory(Exception):
    """There is no history with this revision here, as in a source distribution or a shallow clone."""


def checked_out(folder: Path) -> Path:
    """The packages of the earlier revision, in a folder."""
    command = ["git", "archive", "--format=tar", REVISION, "server", "shared"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        raise NoHistory(f"git has no revision {REVISION} here")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as stored:
        stored.extractall(folder, filter="data")
    return folder


@dataclass
class EarlierCoordinator(Coordinator):
    """A coordinator whose code is in `source`."""

    source: Path = Path()

    def start(self) -> "EarlierCoordinator":
        self._starts += 1
        places = os.pathsep.join(str(self.source / name) for name in ("server", "shared"))
        environment = dict(os.environ) | {"QIDPFL_LOG_FORMAT": "json", "PYTHONPATH": places} | self._signing_key()
        with self._log_file.open("w") as log:
            self.process = subprocess.Popen(  # type: ignore[assignment]
                [sys.executable, "-m", "qidpfl_server", "serve", "--port", "0", *self._where(), *self.arguments],
                env=environment | self.environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.url = self._wait_for_address()
        return self
