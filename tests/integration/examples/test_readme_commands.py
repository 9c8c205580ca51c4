"""The commands that README.md shows for a coordinator and its clients, pasted into shells as they are."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

README = Path(__file__).parents[3] / "README.md"
PATIENCE_S = 180.0


def pasted(port: int, folder: Path) -> list[str]:
    """The two blocks, with a free port and the programs of this environment instead of `.venv`."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(Path(sys.executable).parent)
    return [block.replace("127.0.0.1:8080", f"127.0.0.1:{port}") for block in blocks]


def test_every_pasted_command_works_and_serve_prints_the_next_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve, clients = pasted(port, tmp_path)
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "QIDPFL_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shell = ["bash", "-euo", "pipefail", "-c"]
    log = tmp_path / "serve.log"
    with log.open("w") as said:
        server = subprocess.Popen(
            [*shell, serve], cwd=tmp_path, env=environment, stderr=said, stdout=said, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "next: " not in log.read_text():
            assert time.monotonic() < deadline and server.poll() is None, log.read_text()
            time.sleep(0.1)
        assert "--code-file qidpfl-state/digits.code --clients 10 --public-data" in log.read_text()

        def run(block: str) -> str:
            done = subprocess.run(
                [*shell, block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log.read_text()}"
            return done.stdout + done.stderr

        shown = run(clients)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
    assert "10 of 10 members ended well" in shown and "100 of 100 members ended well" in shown
    assert '"state": "finished"' in shown and '"accuracy"' in shown and '"epsilon"' in shown
    assert "0 violated" in shown
    assert '"event": "task_ended"' in log.read_text()
