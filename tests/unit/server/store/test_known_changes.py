"""Which commits of other processes a server has missed, told from the numbers that it knows."""

from hypothesis import given
from hypothesis import strategies as st

from qidpfl_server.store.changes.known import Change, KnownChanges, News


def known_from(counter: int) -> KnownChanges:
    changes = KnownChanges()
    assert changes.misses(counter)
    return changes


def test_announced_commits_in_order_are_not_missed() -> None:
    changes = known_from(4)
    assert [changes.hear_of(number) for number in (5, 6, 7)] == [News.ONE] * 3
    assert not changes.misses(7)


def test_an_own_commit_is_no_news() -> None:
    changes = known_from(4)
    changes.add_own(5)
    assert changes.hear_of(5) is News.NONE
    assert not changes.misses(5)


def test_a_gap_before_an_announced_commit_is_missed_once() -> None:
    changes = known_from(4)
    assert changes.hear_of(6) is News.MISSED
    assert changes.hear_of(7) is News.ONE
    assert not changes.misses(7)


def test_an_own_commit_after_one_that_was_not_announced_does_not_hide_it() -> None:
    """The fault: the process takes its own number for the newest one that it knows."""
    changes = known_from(4)
    changes.add_own(6)
    assert changes.misses(6)


def test_an_announcement_that_comes_after_the_look_is_no_news() -> None:
    changes = known_from(4)
    assert changes.misses(5)
    assert changes.hear_of(5) is News.NONE


def test_the_number_of_a_failed_commit_may_be_that_of_another_process() -> None:
    changes = known_from(4)
    changes.add_own(5)
    changes.take_back_own()
    assert changes.hear_of(5) is News.MISSED
    assert changes.misses(5)
    assert not changes.misses(5)


@given(st.lists(st.sampled_from(["own", "announced", "silent"]), max_size=30), st.integers(0, 100))
def test_a_look_at_the_counter_finds_exactly_the_silent_commits(kinds: list[str], start: int) -> None:
    changes, silent = known_from(start), False
    for number, kind in enumerate(kinds, start + 1):
        if kind == "own":
            changes.add_own(number)
        elif kind == "announced":
            assert changes.hear_of(number) is (News.MISSED if silent else News.ONE)
            silent = False
        else:
            silent = True
    assert changes.misses(start + len(kinds)) is silent


@given(st.sets(st.from_regex(r"[0-9a-f]{24}", fullmatch=True)), st.booleans(), st.booleans(), st.integers(1, 2**62))
def test_a_message_tells_the_change(task_ids: set[str], due: bool, tokens: bool, number: int) -> None:
    said = Change.of(f"{number}{Change.words(task_ids, due=due, tokens=tokens)}")
    assert said == Change(number, frozenset(task_ids), due=due, tokens=tokens)


def test_a_message_with_too_many_tasks_says_that_any_may_have_changed() -> None:
    words = Change.words({f"{number:024x}" for number in range(400)}, due=True, tokens=False)
    assert len(words) < 100
    assert Change.of(f"7{words}") == Change(7, due=True, everything=True)
