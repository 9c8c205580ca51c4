"""The limits of connections: which one is closed when a new one needs its place."""

import asyncio

import pytest

from qidpfl_server.cli.http.connections import ConnectionLimits, Connections, Slot, limits_within


class Closed(list[str]):
    """The names of the connections that were closed, in order."""

    def admit(self, connections: Connections, host: str, name: str = "") -> Slot | None:
        slot = connections.admit(host)
        if slot is not None:
            slot.on_close(lambda: self.append(name))
        return slot


def test_the_longest_idle_connection_of_the_address_gives_its_place() -> None:
    connections, closed = Connections(ConnectionLimits(total=10, per_address=3, reserved=1)), Closed()
    slots = [closed.admit(connections, "a", str(number)) for number in range(3)]
    assert slots[0] is not None and slots[1] is not None
    slots[0].set_idle(False)
    slots[0].set_idle(True)
    slots[1].set_idle(False)
    assert closed.admit(connections, "a", "3") is not None
    assert closed == ["2"]


def test_a_connection_whose_first_bytes_wait_for_the_server_keeps_its_place() -> None:
    """Catches a slow server that closes a connection before it reads the request: the caller sees a reset."""
    connections, closed = Connections(ConnectionLimits(total=10, per_address=3, reserved=1)), Closed()
    slots = [closed.admit(connections, "a", str(number)) for number in range(3)]
    for slot, number in zip(slots[:2], "01", strict=True):
        assert slot is not None
        slot.on_close(lambda name=number: closed.append(name), is_unread=lambda: True)  # type: ignore[misc]
    for later in range(3, 6):
        assert closed.admit(connections, "a", str(later)) is not None
    assert closed == ["2", "3", "4"]


def test_a_place_is_found_if_all_connections_wait_for_the_server() -> None:
    connections, closed = Connections(ConnectionLimits(total=10, per_address=100, reserved=1)), Closed()
    for number in range(30):
        slot = connections.admit("a")
        assert slot is not None
        slot.on_close(lambda name=str(number): closed.append(name), is_unread=lambda: True)  # type: ignore[misc]
    assert len(closed) == 20


def test_the_address_with_the_most_connections_gives_a_place_when_all_are_taken() -> None:
    connections, closed = Connections(ConnectionLimits(total=4, per_address=None, reserved=1)), Closed()
    for host in ("b", "a", "a", "a", "b"):
        closed.admit(connections, host, host)
    assert closed == ["a"]


def test_only_reserved_places_are_left_when_all_connections_are_busy() -> None:
    connections = Connections(ConnectionLimits(total=2, per_address=2, reserved=1))
    lanes = []
    for _ in range(3):
        slot = connections.admit("a")
        assert slot is not None
        slot.set_idle(False)
        lanes.append(slot.reserved)
    assert lanes == [False, False, True]
    assert connections.admit("a") is None


def test_a_released_place_is_free_once() -> None:
    connections = Connections(ConnectionLimits(total=1, per_address=None, reserved=0))
    slot = connections.admit("a")
    assert slot is not None
    slot.set_idle(False)
    assert connections.admit("a") is None
    slot.release()
    slot.release()
    slot.set_idle(True)
    again = connections.admit("a")
    assert again is not None
    again.set_idle(False)
    assert connections.admit("a") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_count_together(one: str, other: str, same: bool) -> None:
    connections, closed = Connections(ConnectionLimits(total=10, per_address=1)), Closed()
    closed.admit(connections, one, "first")
    closed.admit(connections, other, "second")
    assert closed == (["first"] if same else [])


@pytest.mark.parametrize(("files", "total"), [(65_536, 4096), (1024, 416), (100, 1)])
def test_the_store_keeps_its_files(files: int, total: int) -> None:
    assert limits_within(files, total=4096, per_address=None).total == total


def test_twenty_thousand_files_are_enough_for_ten_thousand_waiting_clients() -> None:
    assert limits_within(20_000, total=11_000, per_address=None).total == 11_000


def test_a_caller_who_must_wait_loses_its_place_first() -> None:
    """Catches held-back requests that keep all places busy: new callers then find none."""
    connections, closed = Connections(ConnectionLimits(total=1, per_address=None, reserved=0)), Closed()
    slot = closed.admit(connections, "a", "held")
    assert slot is not None
    with slot.paused():
        # The next request of the connection has arrived meanwhile.
        slot.set_idle(False)
        assert connections.admit("b") is not None
    assert closed == ["held"]


def test_new_connections_above_the_rate_of_their_address_are_read_late() -> None:
    now = [0.0]
    connections = Connections(ConnectionLimits(total=10, per_address=3), clock=lambda: now[0])
    delays = [connections.delay_s("a") for _ in range(1002)]
    assert delays == [0.0] * 1000 + [0.01, 0.02]
    assert max(connections.delay_s("a") for _ in range(1000)) == 0.5
    assert connections.delay_s("b") == 0
    now[0] = 60.0
    assert connections.delay_s("a") == 0


def test_at_most_half_the_places_of_an_address_wait_unread() -> None:
    """Catches new connections that take the places of those that the server itself does not read yet."""
    connections = Connections(ConnectionLimits(total=10, per_address=4))

    async def ends() -> list[str]:
        waits = {
            asyncio.create_task(connections.wait(host, 60.0)): f"{host}{number}"
            for number, host in enumerate(("a", "a", "b", "a", "a"))
        }
        done, waiting = await asyncio.wait(waits, timeout=0.05)
        for wait in waiting:
            wait.cancel()
        await asyncio.wait(waits)
        return sorted(waits[wait] for wait in done)

    assert asyncio.run(ends()) == ["a0", "a1"]


def test_connections_of_a_proxy_have_no_rate() -> None:
    connections = Connections(ConnectionLimits(total=10, per_address=None))
    assert not any(connections.delay_s("a") for _ in range(5000))
