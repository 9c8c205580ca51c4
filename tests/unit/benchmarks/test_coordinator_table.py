"""The table of the coordinator's benchmark, and what counts where the interpreter lock is held."""

from collections import Counter

import pytest

from coordinator import FLOOR, FLOWER, HERE, Size, header, row
from load import Measured, Update
from lock_profile import by_function, by_module, by_thread, stacks


def measured(seconds: float, processor_ms: float = 10.0, peak_mib: float = 100.0) -> Measured:
    return Measured(seconds, processor_ms, load_processor_ms=1.5, peak_mib=peak_mib)


def test_a_row_has_medians_and_ratios_of_medians_to_the_floor() -> None:
    results = {
        HERE: [measured(0.2, 50.0), measured(0.12, 40.0), measured(0.1, 90.0)],
        FLOOR: [measured(0.002, 4.0), measured(0.004, 5.0), measured(0.003, 6.0)],
        FLOWER: [measured(1.5, 0.0, 900.0)] * 3,
    }
    cells = [cell.strip() for cell in row(Size(10, 7_850), results).strip("| ").split("|")]
    titles = [cell.strip() for cell in header(list(results))[0].strip("| ").split("|")]
    assert dict(zip(titles, cells, strict=True)) == {
        "clients × parameters": "10 × 7,850",
        "coordinator, s": "0.12",
        "floor, s": "0.0030",
        "Flower, s": "1.5",
        "coordinator / floor": "40.0",
        "Flower / floor": "500.0",
        "spread": "0.10–0.20",
        "processor ms per round / floor": "50.0 / 5.0",
        "load, ms": "1.5",
        "coordinator, MiB": "100",
        "floor, MiB": "100",
        "Flower, MiB": "900",
    }


@pytest.mark.parametrize(("text", "rounds"), [("2x7850", 20), ("10x1663370", 3), ("2x1663370", 3), ("50x7850", 20)])
def test_larger_sizes_play_fewer_rounds(text: str, rounds: int) -> None:
    assert Size.parse(text).usual_rounds == rounds


def test_no_two_updates_of_a_client_have_the_same_bytes_or_digest() -> None:
    update = Update(ordinal=3, dimension=20, rounds=4)
    sent = [(bytes(body), digest) for body, digest in (update.of_round(number) for number in range(1, 5))]
    assert len({body for body, _ in sent}) == len({digest for _, digest in sent}) == 4
    assert {len(body) for body, _ in sent} == {80}


def test_a_profile_counts_threads_modules_and_functions() -> None:
    samples = stacks(
        [
            "thread (7): MainThread;run (asyncio/runners.py:19);route (fastapi/routing.py:10);solve (fastapi/a.py:5) 3",
            "thread (7): MainThread;run (asyncio/runners.py:190);route (fastapi/routing.py:12) 1",
            "thread (8): pool-1_0;commit (qidpfl_server/store/store.py:9) 4",
            "thread (9): pool-1_1;wait (threading.py:9) 90",
        ]
    )
    assert by_thread(samples) == Counter({"MainThread": 4, "pool": 4})
    assert by_module(samples) == Counter({"fastapi": 4, "qidpfl_server/store": 4})
    assert by_function(samples, own=True)["solve (fastapi/a.py)"] == 3
    assert by_function(samples, own=False) == Counter(
        {"route (fastapi/routing.py)": 4, "commit (qidpfl_server/store/store.py)": 4, "solve (fastapi/a.py)": 3}
    )
