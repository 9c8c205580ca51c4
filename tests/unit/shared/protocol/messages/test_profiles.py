"""Profiles: histograms and budgets."""

import math
from collections import deque

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qidpfl_shared.protocol.messages import Profile
from support.protocol.message_examples import Reader, example
from support.protocol.refusals import codes_of


@given(counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=8).filter(any))
def test_a_histogram_that_adds_up_is_admissible(counts: list[int]) -> None:
    profile = Profile.model_validate({"label_counts": counts, "size": sum(counts), "privacy_value": 1.0})
    assert profile.label_counts == tuple(counts)


@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=8), size=st.integers(1, 100))
def test_a_histogram_that_does_not_add_up_is_a_mismatch(counts: list[int], size: int) -> None:
    assume(sum(counts) != size)
    body = {"label_counts": counts, "size": size, "privacy_value": 1.0}
    assert codes_of(Profile.model_validate, body) == ["histogram_mismatch"]


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        pytest.param([8, -1], "greater_than_equal", id="negative"),
        pytest.param([7.0, 0], "int_type", id="fraction"),
        pytest.param([True, 6], "int_type", id="true"),
        pytest.param(["7", 0], "int_type", id="text"),
        pytest.param([math.nan, 7], "int_type", id="nan"),
        pytest.param([None, 7], "int_type", id="null"),
        pytest.param([[7], 0], "int_type", id="nested"),
        pytest.param([10**30, 7], "less_than_equal", id="10**30"),
        pytest.param([], "too_short", id="empty"),
        pytest.param([0] * 100_001, "too_long", id="too many labels"),
        pytest.param("7", "wrong_type", id="no list"),
        pytest.param({"0": 7}, "wrong_type", id="object"),
        pytest.param({}, "wrong_type", id="empty object"),
        pytest.param(7, "wrong_type", id="number"),
        pytest.param(None, "histogram_mismatch", id="none, but its budget"),
    ],
)
def test_a_histogram_holds_counts_only(read: Reader, counts: object, code: str) -> None:
    assert codes_of(read, Profile, example(Profile) | {"label_counts": counts}) == [code]


def test_a_profile_may_have_no_histogram_and_then_no_budget_for_one(read: Reader) -> None:
    body = {name: value for name, value in example(Profile).items() if name != "label_counts"}
    for without in (body, body | {"label_counts": None}):
        assert codes_of(read, Profile, without | {"histogram_rho": 0.1}) == ["histogram_mismatch"]
        profile = read(Profile, without | {"histogram_rho": None})
        assert isinstance(profile, Profile) and profile.label_counts is None


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param({3, 4}, id="set"),
        pytest.param(frozenset({3, 4}), id="frozen set"),
        pytest.param({3: 0, 4: 0}, id="dict"),
        pytest.param({3: 0, 4: 0}.keys(), id="keys"),
        pytest.param(range(3, 5), id="range"),
        pytest.param(iter([3, 4]), id="iterator"),
        pytest.param(deque([3, 4]), id="deque"),
        pytest.param(b"\x03\x04", id="bytes"),
    ],
)
def test_nothing_else_that_can_be_iterated_is_a_list(counts: object) -> None:
    assert codes_of(Profile.model_validate, example(Profile) | {"label_counts": counts}) == ["wrong_type"]


@pytest.mark.parametrize("counts", [[3, 4], (3, 4)], ids=["list", "tuple"])
def test_a_list_may_be_a_tuple(counts: object) -> None:
    assert Profile.model_validate(example(Profile) | {"label_counts": counts}).label_counts == (3, 4)


def test_a_client_without_records_has_no_profile(read: Reader) -> None:
    body = {"label_counts": [0, 0], "size": 0, "privacy_value": 1.0}
    assert codes_of(read, Profile, body) == ["greater_than_equal"]


def test_counts_beyond_any_size_do_not_overflow(read: Reader) -> None:
    largest = 2**53 - 1
    body = {"label_counts": [largest, largest], "size": largest, "privacy_value": 1.0}
    assert codes_of(read, Profile, body) == ["histogram_mismatch"]


@pytest.mark.parametrize("field", ["histogram_rho", "rho_cap", "lifetime_rho"])
def test_a_budget_of_a_profile_may_be_left_open(read: Reader, field: str) -> None:
    profile = read(Profile, example(Profile) | {field: None})
    assert getattr(profile, field) is None


@pytest.mark.parametrize("field", ["privacy_value", "histogram_rho", "rho_cap", "lifetime_rho"])
def test_a_budget_of_a_profile_is_never_zero(read: Reader, field: str) -> None:
    assert codes_of(read, Profile, example(Profile) | {field: 0}) == ["greater_than_equal"]
