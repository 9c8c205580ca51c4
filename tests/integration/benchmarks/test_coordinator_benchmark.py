"""The benchmark of the coordinator runs, on its smallest size."""

import pytest

from coordinator import FLOOR, HERE, Size, measure, measure_coordinator, measure_floor


@pytest.mark.live
def test_coordinator_and_floor_play_the_same_rounds() -> None:
    results = measure(Size(2, 7_850), {HERE: measure_coordinator, FLOOR: measure_floor}, repeats=1, rounds=2)
    (here,), (floor,) = results[HERE], results[FLOOR]
    assert min(here.seconds, floor.seconds) > 0
    # The floor neither writes to a disk nor checks anything.
    assert 0 < floor.processor_ms < here.processor_ms
    assert 0 < floor.peak_mib < here.peak_mib
