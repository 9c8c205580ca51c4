"""The turn of a fleet: one thread computes, the others wait; no wait keeps it, and no wait loses it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qidpfl_client.fleet.turn import Trainings, Turn

PATIENCE_S = 30.0


class Counter:
    """How many threads are inside at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


def test_one_thread_computes_while_the_others_wait() -> None:
    turn, computing, all_wait = Turn(), Counter(), threading.Barrier(4)

    def step() -> None:
        with turn:
            for _ in range(3):
                with computing:
                    pass
                with turn.waiting():
                    # Returns only if all four threads wait at the same time.
                    all_wait.wait(PATIENCE_S)
                with computing:
                    assert turn.is_held()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(step) for _ in range(4)]:
            future.result(PATIENCE_S)
    assert computing.most == 1 and not turn.is_held()


def test_a_wait_within_a_wait_does_not_take_the_turn() -> None:
    turn = Turn()
    with turn:
        with turn.waiting():
            with turn.waiting():
                assert not turn.is_held()
            assert not turn.is_held()
        assert turn.is_held()


def test_a_wait_that_fails_has_the_turn_again() -> None:
    turn = Turn()
    with turn:
        with pytest.raises(OSError), turn.waiting():
            raise OSError
        assert turn.is_held()


def test_a_thread_without_the_turn_waits_as_before() -> None:
    turn = Turn()
    with turn.waiting():
        assert not turn.is_held()
    assert not turn.is_held()
    with turn:
        assert turn.is_held()


def test_long_trainings_run_beside_each_other_up_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every training counts as a long one.
    monkeypatch.setattr("qidpfl_client.fleet.turn._SHORT_TRAINING_S", -1.0)
    turn, training, two_train = Turn(), Counter(), threading.Barrier(2)
    trainings = Trainings(turn, at_once=2)

    def step() -> None:
        with turn, trainings, training:
            assert not turn.is_held()
            two_train.wait(PATIENCE_S)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(step) for _ in range(6)]:
            future.result(PATIENCE_S)
    assert training.most == 2


def test_a_short_training_keeps_the_turn_and_a_failed_one_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qidpfl_client.fleet.turn._SHORT_TRAINING_S", PATIENCE_S)
    turn = Turn()
    trainings = Trainings(turn, at_once=1)
    with turn, trainings:
        assert turn.is_held()
    monkeypatch.setattr("qidpfl_client.fleet.turn._SHORT_TRAINING_S", -1.0)
    for _ in range(2):
        with turn:
            with pytest.raises(OSError), trainings:
                raise OSError
            assert turn.is_held()
