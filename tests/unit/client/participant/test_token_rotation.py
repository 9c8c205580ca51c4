"""When a client replaces its token, and which token it goes on with."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.journal.journal import Journal, Membership
from qidpfl_client.participant.token_rotation import TokenRotation, rotate_token, settle_token
from qidpfl_shared.protocol.errors import ErrorCode
from support.peers.scripted_coordinator import TASK, TOKEN, Scripted, problem, verdict

NEW = "the-new-token-of-the-client"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as opened:
        opened.save_membership(
            Membership(task_id=TASK, server="https://x", enrolment_key="k", spec="{}", spec_digest="d", token=TOKEN)
        )
        yield opened


def tokens(journal: Journal) -> tuple[str | None, str | None]:
    known = journal.membership(TASK)
    assert known is not None
    return known.token, known.next_token


def given(token: str = NEW) -> httpx.Response:
    return httpx.Response(200, json={"token": token})


def when_stored(journal: Journal) -> Callable[[httpx.Request], httpx.Response]:
    """Accepts the new token, and checks that the journal already has both."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert tokens(journal) == (TOKEN, NEW)
        assert request.headers["Authorization"] == f"Bearer {NEW}"
        return verdict()

    return answer


def test_a_new_token_is_stored_before_it_is_used(journal: Journal) -> None:
    api = Scripted(given(), when_stored(journal)).task()
    assert rotate_token(api, journal)
    assert tokens(journal) == (NEW, None) and api.token == NEW


def test_a_refused_new_token_is_dropped(journal: Journal) -> None:
    api = Scripted(given(), problem(ErrorCode.UNAUTHENTICATED)).task()
    assert not rotate_token(api, journal)
    assert tokens(journal) == (TOKEN, None) and api.token == TOKEN


def test_both_tokens_stay_if_it_is_unknown_which_one_is_valid(journal: Journal) -> None:
    api = Scripted(given(), httpx.Response(200, json={})).task()
    with pytest.raises(UntrustedCoordinator):
        rotate_token(api, journal)
    assert tokens(journal) == (TOKEN, NEW)
    again = Scripted(verdict()).task()
    assert settle_token(again, journal).token == NEW and tokens(journal) == (NEW, None)


def test_without_a_next_token_nothing_is_asked(journal: Journal) -> None:
    coordinator = Scripted(verdict())
    assert settle_token(coordinator.task(), journal).token == TOKEN
    assert coordinator.requests == []


@pytest.mark.parametrize("body", [{}, {"token": "short"}, {"token": "with space in it, and long"}, {"token": 7}])
def test_a_token_that_is_none_is_not_stored(journal: Journal, body: dict[str, object]) -> None:
    with pytest.raises(UntrustedCoordinator):
        rotate_token(Scripted(httpx.Response(200, json=body)).task(), journal)
    assert tokens(journal) == (TOKEN, None)


def test_a_running_client_rotates_at_the_start_and_then_when_it_is_due(journal: Journal) -> None:
    now, said = [100.0], list[str]()
    rotation = TokenRotation(every_s=60.0, report=said.append, clock=lambda: now[0])
    coordinator = Scripted(given(), verdict(), given(f"{NEW}-2"), verdict())
    api = coordinator.task()
    for moment in (100.0, 159.9, 160.0, 161.0):
        now[0] = moment
        rotation.rotate_if_due(api, journal)
    assert len(coordinator.requests) == 4 and tokens(journal) == (f"{NEW}-2", None)
    assert said == ["the client has a new token"] * 2 and not [line for line in said if NEW in line]


def test_an_earlier_coordinator_that_gives_no_tokens_is_asked_once(journal: Journal) -> None:
    said = list[str]()
    rotation = TokenRotation(every_s=0.0, report=said.append)
    coordinator = Scripted(problem(ErrorCode.NOT_FOUND))
    for _ in range(3):
        rotation.rotate_if_due(coordinator.task(), journal)
    assert len(coordinator.requests) == 1 and len(said) == 1 and tokens(journal) == (TOKEN, None)
