"""What all tests with containers share: an engine, or a reason to skip them, and the images."""

import fcntl
import tempfile
import uuid
from pathlib import Path

import pytest
from containers import ROOT, Testbed, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    if here and (reason := missing()) is not None:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=f"{reason}: `make test-docker` needs a Docker engine"))


@pytest.fixture(scope="session")
def images() -> None:
    """Both images, built from this folder."""
    # Several test processes: the first one builds, the others find its layers.
    with (Path(tempfile.gettempdir()) / "qidpfl-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Testbed("qidpfl-images", ROOT).done("build", timeout_s=1800)


@pytest.fixture(scope="module")
def project() -> str:
    """A name that no other testbed of this machine has."""
    return f"qidpfl-test-{uuid.uuid4().hex[:8]}"
