"""A testbed in containers: tests start, break and inspect it with the commands of the engine."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# An image with PostgreSQL and the proxy from Debian's packages.
DEBIAN = "qidpfl-test-debian"
# Long enough for every fault on a slow machine: each round waits for all clients, and all of them come.
NO_TIMEOUTS = {"quiet_s": 600.0, "enrolment_window_s": 600.0, "declare_s": 600.0, "deliver_s": 600.0}


def missing() -> str | None:
    """Why containers cannot run here, or None."""
    if shutil.which("docker") is None:
        return "there is no docker here"
    if subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        return "no Docker engine answers"
    if not has_plugin() and shutil.which("docker-compose") is None:
        return "there is neither `docker compose` nor docker-compose here"
    return None


@cache
def has_plugin() -> bool:
    """Whether Compose is a subcommand of docker, not a separate program."""
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


def output(*command: str, check: bool = True, timeout_s: float = 300) -> str:
    """The output of a command, from both of its streams."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, cwd=ROOT
    )
    assert not check or done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 600) -> None:
    """Poll a condition; fail after a long timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.2)


@dataclass(frozen=True)
class Container:
    """One container, running or not."""

    name: str

    def state(self) -> dict[str, Any]:
        return dict(self.inspect()["State"])

    def exit_code(self) -> int | None:
        """The exit code; None while it runs or is about to restart."""
        state = self.state()
        return int(state["ExitCode"]) if state["Status"] == "exited" else None

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(output("docker", "inspect", self.name))[0]
        return found

    def log(self) -> str:
        return output("docker", "logs", self.name)

    def inside(self, *command: str, check: bool = True) -> str:
        """The output of a command in this container."""
        return output("docker", "exec", self.name, *command, check=check)

    def do(self, verb: str) -> None:
        """`docker VERB` this container."""
        output("docker", verb, self.name)

    def beside(self, *command: str) -> str:
        """The output of a command of the same image on the volumes of this container, which need not run."""
        image = self.inspect()["Config"]["Image"]
        return output("docker", "run", "--rm", "--volumes-from", self.name, image, *command)

    def crash(self) -> None:
        """Kill its process without the engine, which therefore treats it as a crash."""
        self.inside("sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False)

    def last_delivered(self) -> int:
        """The last round that this client has delivered; 0 if none."""
        return max(map(int, re.findall(r"round (\d+): delivered", self.log())), default=0)


@dataclass
class Testbed:
    """The containers of one Compose project."""

    __test__ = False

    project: str
    folder: Path = ROOT
    overlays: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def compose(self, *arguments: str, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
        """Run Compose on this project."""
        program = ["docker", "compose"] if has_plugin() else ["docker-compose"]
        files = ["docker-compose.yml", *(f"docker-compose.{name}.yml" for name in self.overlays)]
        named = [part for name in files for part in ("-f", name)]
        return subprocess.run(
            [*program, "-p", self.project, *named, *arguments],
            cwd=self.folder,
            env=os.environ | {"QIDPFL_PORT": "0", "TESTBED_PROXY_PORT": "0"} | self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def done(self, *arguments: str, timeout_s: float = 1800) -> str:
        """The output of a Compose command that succeeds."""
        ended = self.compose(*arguments, timeout_s=timeout_s)
        assert ended.returncode == 0, f"{arguments} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def containers(self, service: str) -> list[Container]:
        labels = {"project": self.project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        return [Container(name) for name in sorted(output("docker", "ps", "-aq", *filters).split())]

    def one(self, service: str) -> Container:
        (container,) = self.containers(service)
        return container

    def volumes(self) -> set[str]:
        """The volumes of all containers, with and without names."""
        containers = [one for service in self.done("config", "--services").split() for one in self.containers(service)]
        mounts = [mount for container in containers for mount in container.inspect()["Mounts"]]
        return {mount["Name"] for mount in mounts if mount["Type"] == "volume"}

    def leftovers(self) -> list[str]:
        """All objects of this project."""
        label = f"--filter=label=com.docker.compose.project={self.project}"
        lists = (("ps", "-aq"), ("volume", "ls", "-q"), ("network", "ls", "-q"))
        return [name for command in lists for name in output("docker", *command, label).split()]


@contextmanager
def cleaned_up(testbed: Testbed) -> Iterator[Testbed]:
    """A testbed that is always removed; the logs of its containers are shown if the test fails."""
    try:
        yield testbed
    except BaseException:
        print(testbed.compose("logs", "--no-color", "--tail=40").stdout)
        raise
    finally:
        testbed.compose("down", "--volumes", "--remove-orphans", "--timeout=1")


def wait_for_the_end(testbed: Testbed, *services: str) -> None:
    """Wait until all containers of these services have stopped."""
    for service in services:
        for container in testbed.containers(service):
            output("docker", "wait", container.name, timeout_s=1200)
