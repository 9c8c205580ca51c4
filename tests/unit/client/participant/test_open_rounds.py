"""The check before an upload: a client asks each time; the members of a fleet share a fresh answer."""

from datetime import UTC, datetime
from typing import Any

import httpx

from qidpfl_client.api import TaskApi
from qidpfl_client.participant.open_rounds import OpenRounds
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import Announcement, RoundOffer, TaskState

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def offer(**changes: Any) -> RoundOffer:
    fields: dict[str, Any] = {
        "round_number": 3,
        "attempt": 2,
        "reward_micro": 1,
        "total": 0.5,
        "standing": Standing.INVITED,
        "model_version": 0,
        "model_digest": "0" * 64,
        "mechanism": "gradient_once",
        "dimension": 650,
        "rho_max": 1.0,
        "noise": True,
        "declare_by": MOMENT,
        "deliver_by": MOMENT,
        "declare_in_s": 0.0,
        "deliver_in_s": 20.0,
    }
    return RoundOffer(**fields | changes)


class Coordinator:
    """Announces one round, and counts how often it is asked."""

    def __init__(self, **changes: Any) -> None:
        self.asked = 0
        self.now = 100.0
        self._news = Announcement(task_state=TaskState.TRAINING, round=offer(**changes))

    def api(self, task_id: str = "abc123") -> TaskApi:
        http = httpx.Client(base_url="http://127.0.0.1", transport=httpx.MockTransport(self._answer))
        return TaskApi(http, task_id=task_id, token="a-token-of-the-client")

    def rounds(self, *, shared_s: float) -> OpenRounds:
        return OpenRounds(shared_s=shared_s, clock=lambda: self.now)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return httpx.Response(200, text=self._news.model_dump_json())


def test_a_client_asks_before_each_upload() -> None:
    live = Coordinator()
    rounds = live.rounds(shared_s=0.0)
    assert [rounds.attempt(live.api(), 3) for _ in range(3)] == [2, 2, 2]
    assert live.asked == 3


def test_members_share_a_fresh_answer() -> None:
    live = Coordinator()
    rounds = live.rounds(shared_s=0.25)
    assert [rounds.attempt(live.api(), 3) for _ in range(3)] == [2, 2, 2]
    assert live.asked == 1
    live.now += 0.3
    assert rounds.attempt(live.api(), 3) == 2 and live.asked == 2


def test_an_answer_holds_for_one_round_of_one_task() -> None:
    live = Coordinator()
    rounds = live.rounds(shared_s=0.25)
    assert rounds.attempt(live.api(), 3) == 2
    assert rounds.attempt(live.api(), 4) is None
    assert rounds.attempt(live.api("def456"), 3) == 2
    assert live.asked == 3


def test_an_answer_holds_until_the_round_closes() -> None:
    live = Coordinator(deliver_in_s=0.1)
    rounds = live.rounds(shared_s=0.25)
    assert rounds.attempt(live.api(), 3) == 2
    live.now += 0.11
    rounds.attempt(live.api(), 3)
    assert live.asked == 2


def test_a_closed_round_is_asked_for_again() -> None:
    live = Coordinator(deliver_in_s=0.0)
    rounds = live.rounds(shared_s=0.25)
    assert [rounds.attempt(live.api(), 3) for _ in range(2)] == [None, None]
    assert live.asked == 2


def test_an_announcement_counts_from_its_question_on() -> None:
    live = Coordinator()
    rounds = live.rounds(shared_s=0.25)
    rounds.note(live.api(), offer(), asked_at=live.now - 0.2)
    assert rounds.attempt(live.api(), 3) == 2 and live.asked == 0
    live.now += 0.1
    assert rounds.attempt(live.api(), 3) == 2 and live.asked == 1
