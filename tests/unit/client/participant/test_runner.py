"""How long a client waits during an outage."""

import math

import pytest

from qidpfl_client.errors import Unreachable
from qidpfl_client.participant.runner import PollPace, ReconnectPolicy
from qidpfl_shared.core.arguments import ImpossibleArgument

AWAY = Unreachable("no answer")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reconnect(said: list[str], clock: Clock) -> ReconnectPolicy:
    return ReconnectPolicy(patience_s=600.0, first_contact_s=10.0, report=said.append, clock=clock)


def waited_s(reconnect: ReconnectPolicy, clock: Clock) -> float:
    """How long the client waits before it fails."""
    began = clock.now
    try:
        while True:
            clock.now += reconnect.pause_s(AWAY)
    except Unreachable:
        return clock.now - began


def test_a_client_waits_briefly_for_a_coordinator_that_never_answered(reconnect: ReconnectPolicy, clock: Clock) -> None:
    assert waited_s(reconnect, clock) == pytest.approx(10.0)


def test_each_outage_has_the_full_patience(reconnect: ReconnectPolicy, clock: Clock, said: list[str]) -> None:
    reconnect.connected()
    for _ in range(3):
        for _ in range(5):
            clock.now += reconnect.pause_s(AWAY)
        reconnect.connected()
        clock.now += 1000.0
    assert said == ["no answer; trying again", "the coordinator is back"] * 3
    assert waited_s(reconnect, clock) == pytest.approx(600.0)


def test_the_first_answer_is_not_reported_as_a_return(reconnect: ReconnectPolicy, said: list[str]) -> None:
    reconnect.pause_s(AWAY)
    assert reconnect.is_disconnected
    reconnect.connected()
    assert said == ["no answer; trying again"] and not reconnect.is_disconnected


def test_pauses_grow_up_to_a_limit_and_are_random(reconnect: ReconnectPolicy, clock: Clock) -> None:
    reconnect.connected()
    pauses = [reconnect.pause_s(AWAY) for _ in range(40)]
    assert 0.5 <= pauses[0] <= 1.0
    assert all(7.5 <= pause <= 15.0 for pause in pauses[5:])
    assert len(set(pauses)) == 40


@pytest.mark.parametrize("impossible", [-1.0, math.nan, math.inf])
def test_impossible_patience_is_refused(impossible: float) -> None:
    with pytest.raises(ImpossibleArgument):
        ReconnectPolicy(patience_s=impossible, first_contact_s=1.0, report=print)
    with pytest.raises(ImpossibleArgument):
        ReconnectPolicy(patience_s=1.0, first_contact_s=impossible, report=print)


def test_the_starts_of_two_polls_are_apart(clock: Clock) -> None:
    pace = PollPace(clock=clock)
    assert pace.wait_s() == 0.0
    assert pace.wait_s() == pytest.approx(0.2)
    clock.now += 0.25
    assert pace.wait_s() == pytest.approx(0.15)
    clock.now += 30.0
    assert pace.wait_s() == 0.0
