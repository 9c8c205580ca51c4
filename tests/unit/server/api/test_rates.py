"""The rates of callers: a client's token has its own, everything else counts for the address."""

from qidpfl_server.api.rates import CallerRates


class Time:
    """A clock that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def rates(clock: Time | None = None) -> CallerRates:
    return CallerRates(per_client_s=1.0, per_address_s=2.0, clock=clock or Time())


def passed(found: CallerRates, token: str | None, host: str, count: int) -> int:
    """How many of so many requests pass."""
    return sum(not found.count(token, host).wait_s for _ in range(count))


def test_clients_of_one_address_have_a_rate_each() -> None:
    """Catches a limit per address for enrolled clients."""
    found = rates()
    for client in ("a", "b", "c"):
        found.know(client)
        assert passed(found, client, "192.0.2.1", 50) == 10
    assert passed(found, None, "192.0.2.1", 50) == 20


def test_invented_tokens_have_no_rate_of_their_own() -> None:
    """Catches a limit per token without a check whether the token exists."""
    found = rates()
    assert sum(passed(found, f"invented-{n}", "192.0.2.1", 1) for n in range(100)) == 20
    assert sum(passed(found, f"invented-{n}", f"2001:db8::{n}", 1) for n in range(100)) == 20
    assert passed(found, "invented", "192.0.2.2", 1) == 1


def test_first_requests_of_clients_do_not_count_for_the_address() -> None:
    """Catches clients that are kept out after a restart because all of them are unknown at first."""
    found = rates()
    for number in range(500):
        token = f"client-{number}"
        ticket = found.count(token, "192.0.2.1")
        assert not ticket.wait_s
        found.know(token)
        found.settle(ticket, token, 200)


def test_wrong_credentials_count_more() -> None:
    """Also after the burst: catches a cost that ends at zero, so that each new attempt allows a wrong one."""
    clock = Time()
    found = rates(clock)

    def wrong_until_refused() -> int:
        count = 0
        while not (ticket := found.count("wrong", "192.0.2.1")).wait_s:
            found.settle(ticket, "wrong", 401)
            count += 1
        return count

    assert wrong_until_refused() == 5
    tries = 0
    for _ in range(40):
        clock.now += 0.5
        tries += wrong_until_refused()
    assert tries == 10


def test_the_wait_grows_with_the_flood_and_ends_with_it() -> None:
    clock = Time()
    found = rates(clock)
    found.know("a")
    waits = [found.count("a", "").wait_s for _ in range(100)][10:]
    assert waits[0] == 1.0 and waits == sorted(waits) and waits[-1] == 30.0
    clock.now = 40.0
    assert found.count("a", "").wait_s == 0


def test_health_has_a_rate_of_its_own() -> None:
    found = rates()
    assert passed(found, None, "192.0.2.1", 100) == 20
    assert found.count_health("192.0.2.1") == 0
