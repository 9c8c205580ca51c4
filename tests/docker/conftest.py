"""Shared by all tests with containers: an engine, or a reason to skip them, and the images."""

import fcntl
import os
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.containers import DEBIAN, ROOT, Testbed, missing, output


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and (reason := missing()) is not None:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=f"{reason}: `make test-docker` needs a Docker engine"))


@pytest.fixture(scope="session")
def images() -> None:
    """Both images, and one with PostgreSQL and the proxy; built from this folder."""
    # Several test processes: the first one builds, the others find its layers.
    with (Path(tempfile.gettempdir()) / "qidpfl-images.lock").open("w") as lock, ThreadPoolExecutor() as both:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for built in (both.submit(build_ours), both.submit(build_debian)):
            built.result()


def build_ours() -> None:
    # One after the other: the second one finds the layer that they share.
    for service in ("coordinator", "client"):
        Testbed("qidpfl-images", ROOT).done("build", service, timeout_s=1800)


def build_debian() -> None:
    folder = ROOT / "tests" / "docker" / "debian"
    network = os.environ.get("TESTBED_BUILD_NETWORK", "default")
    output("docker", "build", "--quiet", "--network", network, "--tag", DEBIAN, str(folder), timeout_s=1800)


@pytest.fixture(scope="module")
def project() -> str:
    """A name that no other testbed of this machine has."""
    return f"qidpfl-test-{uuid.uuid4().hex[:8]}"
