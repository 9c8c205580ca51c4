"""The cache of settled rounds: what it keeps and what it does not keep."""

from qidpfl_server.api.caches import SettledRoundCache
from qidpfl_shared.protocol.messages import RoundResult, RoundState


def a_round(number: int, state: RoundState = RoundState.SETTLED) -> RoundResult:
    return RoundResult(
        round_number=number,
        attempt=1,
        state=state,
        reward_micro=1,
        paid_micro=1,
        kept_micro=0,
        total=1.0,
        updates=3,
        model_version=number,
    )


def test_a_settled_round_is_kept_for_its_own_task() -> None:
    rounds = SettledRoundCache()
    rounds.add("one", a_round(1))
    assert rounds.get("one", 1) == a_round(1)
    assert rounds.get("two", 1) is None
    assert rounds.get("one", 2) is None


def test_a_round_that_may_still_change_is_not_kept() -> None:
    rounds = SettledRoundCache()
    for state in (RoundState.OPEN, RoundState.VOID):
        rounds.add("one", a_round(1, state))
        assert rounds.get("one", 1) is None


def test_the_oldest_result_is_removed_if_the_cache_is_full() -> None:
    rounds = SettledRoundCache(size=2)
    for number in (1, 2, 3):
        rounds.add("one", a_round(number))
    assert [rounds.get("one", number) is not None for number in (1, 2, 3)] == [False, True, True]


def test_a_result_without_its_scores_is_kept_only_for_requests_that_do_not_need_them() -> None:
    rounds = SettledRoundCache()
    rounds.add("one", a_round(1), awaits_evaluation=True)
    assert rounds.get("one", 1) is None
    assert rounds.get("one", 1, with_scores=False) == a_round(1)
    rounds.add("one", a_round(1))
    assert rounds.get("one", 1) == a_round(1)
