"""Settings for all tests."""

import os

from hypothesis import HealthCheck, settings

# No test is timed; in CI the examples are the same on every run, so that a red build can be repeated.
settings.register_profile(
    "qidpfl",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("qidpfl")
