"""The rate of enrolments: bursts, refusals and the waits that they get."""

import math

import pytest

from qidpfl_server.api.rates import AttemptRate, EnrolmentLimits, TooManyEnrolments


class Time:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = Time()
    rate = AttemptRate(2.0, clock=clock)
    assert [rate.take("a") for _ in range(20)] == [0.0] * 20
    assert rate.take("a") > 0
    assert rate.take("b") == 0
    clock.now = 1.0
    assert [rate.take("a") > 0 for _ in range(3)] == [False, False, True]


def test_refused_attempts_are_spread_and_never_wait_long() -> None:
    rate = AttemptRate(2.0, clock=Time())
    waits = [rate.take("a") for _ in range(1000)][20:]
    assert waits == sorted(waits)
    assert (waits[0], waits[19], waits[-1]) == (0.5, 10.0, 30.0)


def test_all_of_a_fleet_pass_when_they_obey() -> None:
    clock = Time()
    rate = AttemptRate(10.0, clock=clock)
    due, tries = dict.fromkeys(range(400), 0.0), dict.fromkeys(range(400), 0)
    while due:
        number = min(due, key=due.__getitem__)
        clock.now = max(clock.now, due[number])
        tries[number] += 1
        if wait := rate.take("task"):
            due[number] = clock.now + math.ceil(wait)
        else:
            del due[number]
    assert max(tries.values()) <= 6


def test_the_number_of_keys_is_bounded() -> None:
    rate = AttemptRate(1.0, clock=Time())
    for number in range(20_000):
        rate.take(str(number))
    assert len(rate._buckets) == 10_000


def test_wrong_codes_do_not_use_up_the_rate_of_the_task() -> None:
    limits = EnrolmentLimits(1.0)
    with pytest.raises(TooManyEnrolments) as refused:
        for _ in range(100):
            limits.count_wrong_code("192.0.2.1")
    assert refused.value.retry_after_s == 1
    limits.count("task")
