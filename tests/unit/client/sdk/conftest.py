"""Settings for the tests of the SDK."""

from collections.abc import Iterator

import pytest
import stamina.instrumentation


@pytest.fixture(autouse=True)
def no_log_lines() -> Iterator[None]:
    stamina.instrumentation.set_on_retry_hooks([])
    yield
    stamina.instrumentation.set_on_retry_hooks(None)
