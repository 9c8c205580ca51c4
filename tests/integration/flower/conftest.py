"""The interpreter of an environment with Flower; tests that need it are skipped with the reason where there is none."""

from pathlib import Path

import pytest

from support.flower_environment import NoFlower, flower_python


@pytest.fixture(scope="session")
def flower() -> Path:
    """The interpreter."""
    try:
        return flower_python()
    except NoFlower as reason:
        pytest.skip(str(reason))
