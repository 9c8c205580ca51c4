"""Texts, times, states and switches in messages."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.protocol.fields import MAX_TEXT
from qidpfl_shared.protocol.ledger import LedgerEntry
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    ClientResult,
    Decline,
    EnrolRequest,
    Event,
    RoundOffer,
    RoundResult,
    SelectionVerdict,
    TaskSummary,
    UpdateReceipt,
)
from support.protocol.message_examples import (
    DIGEST,
    NOON,
    Place,
    Reader,
    codes_by_place,
    example,
    read_objects,
    read_text,
)
from support.protocol.refusals import codes_of

TEXTS: list[Place] = [
    (Decline, "reason"),
    (EnrolRequest, "enrolment_code"),
    (EnrolRequest, "enrolment_key"),
    (Event, "kind"),
    (UpdateReceipt, "digest"),
]
LINES: list[Place] = [
    (TaskSummary, "reason"),
    (Announcement, "reason"),
    (Decline, "reason"),
    (LedgerEntry, "mechanism"),
    (Event, "detail"),
]


@pytest.mark.parametrize("value", [None, 1, True, ["x"], {}], ids=repr)
def test_text_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, TEXTS, value) == {key: ["string_type"] for key in TEXTS}


@pytest.mark.parametrize("value", ["\ud800", "fine until \udc00"], ids=ascii)
def test_a_lone_surrogate_is_refused_among_objects(value: str) -> None:
    assert codes_by_place(read_objects, TEXTS, value) == {key: ["string_unicode"] for key in TEXTS}


@pytest.mark.parametrize("value", ["\ud800", "fine until \udc00"], ids=ascii)
def test_a_lone_surrogate_is_refused_in_text(value: str) -> None:
    assert codes_by_place(read_text, TEXTS, value) == {key: ["json_invalid"] for key in TEXTS}


def test_a_pair_of_surrogates_is_one_character() -> None:
    decline = Decline.model_validate_json('{"decline": true, "reason": "\\ud83d\\ude00"}')
    assert len(decline.reason) == 1


@pytest.mark.parametrize("code", ["t-1", "t-1.", ".secret", "t-1.a.b", "t 1.secret", "../t.secret", "t-1.secret\n"])
def test_an_enrolment_code_is_a_task_and_a_secret(read: Reader, code: str) -> None:
    body = example(EnrolRequest) | {"enrolment_code": code}
    assert codes_of(read, EnrolRequest, body) == ["string_pattern_mismatch"]


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", "string_too_short"),
        ("k" * 15, "string_too_short"),
        ("k" * 201, "string_too_long"),
        ("k" * 16 + " ", "string_pattern_mismatch"),
        ("k" * 16 + "\n", "string_pattern_mismatch"),
        ("k" * 16 + "\x00", "string_pattern_mismatch"),
        ("\u00e9" * 16, "string_pattern_mismatch"),
    ],
)
def test_an_enrolment_key_is_plain_and_long_enough(read: Reader, key: str, code: str) -> None:
    assert codes_of(read, EnrolRequest, example(EnrolRequest) | {"enrolment_key": key}) == [code]


@pytest.mark.parametrize("digest", ["", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), "g" * 64, DIGEST + "\n"])
def test_a_digest_is_lower_case_hexadecimal(read: Reader, digest: str) -> None:
    assert codes_of(read, UpdateReceipt, example(UpdateReceipt) | {"digest": digest}) == ["string_pattern_mismatch"]


@pytest.mark.parametrize("length", [1001, 100_000])
def test_a_reason_has_a_limited_length(read: Reader, length: int) -> None:
    assert codes_of(read, Decline, example(Decline) | {"reason": "x" * length}) == ["string_too_long"]


@pytest.mark.parametrize("character", ["\x00", "\t", "\n", "\r", "\x1b", "\x1f", "\x7f"], ids=ascii)
@pytest.mark.parametrize("form", ["{}", "{}after", "before{}", "be{}tween"])
def test_a_line_of_text_holds_no_control_character(read: Reader, form: str, character: str) -> None:
    codes = codes_by_place(read, LINES, form.format(character))
    assert codes == {key: ["string_pattern_mismatch"] for key in LINES}


@pytest.mark.parametrize("line", ["", " ", "19 updates", "\u03c1 = 0.1 \U0001f600", "\u00e9" * MAX_TEXT])
def test_a_line_of_text_holds_any_other_character(read: Reader, line: str) -> None:
    assert codes_by_place(read, LINES, line) == {key: [] for key in LINES}


@pytest.mark.parametrize("at", ["2025-06-01T12:00:00", "2025-06-01"])
def test_a_time_without_an_offset_is_refused(read: Reader, at: str) -> None:
    assert codes_of(read, Event, example(Event) | {"at": at}) == ["timezone_aware"]


@pytest.mark.parametrize("at", ["noon", "", "2025-13-01T00:00:00Z"], ids=repr)
def test_text_that_is_not_a_time_is_refused(read: Reader, at: str) -> None:
    assert codes_of(read, Event, example(Event) | {"at": at})[0].startswith("datetime_")


MOMENTS: list[Place] = [
    (RoundOffer, "declare_by"),
    (RoundOffer, "deliver_by"),
    (BudgetReceipt, "recorded_at"),
    (UpdateReceipt, "received_at"),
    (Event, "at"),
]


@pytest.mark.parametrize(
    "value", [0, 1_748_779_200, 1_748_779_200.5, 10**30, math.nan, math.inf, True, None, [], {}], ids=repr
)
def test_a_time_must_be_text(read: Reader, value: object) -> None:
    assert codes_by_place(read, MOMENTS, value) == {key: ["wrong_type"] for key in MOMENTS}


@pytest.mark.parametrize("value", [NOON.date(), NOON.timetz(), timedelta(hours=12), b"2025-06-01T12:00:00Z"], ids=repr)
def test_no_other_object_is_a_time(value: object) -> None:
    assert codes_by_place(read_objects, MOMENTS, value) == {key: ["wrong_type"] for key in MOMENTS}


def test_a_time_may_be_an_object() -> None:
    assert Event.model_validate(example(Event) | {"at": NOON}).at == NOON


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    assert Event.model_validate(example(Event) | {"at": elsewhere.isoformat()}).at == NOON


@given(at=st.datetimes(timezones=st.just(UTC)))
def test_a_time_keeps_its_microseconds(at: datetime) -> None:
    assert Event.model_validate_json(Event(id=1, at=at, kind="round.settled").model_dump_json()).at == at


STATES: list[Place] = [
    (Announcement, "task_state"),
    (RoundOffer, "standing"),
    (RoundOffer, "mechanism"),
    (RoundResult, "state"),
    (ClientResult, "verdict"),
    (LedgerEntry, "state"),
]
SWITCHES: list[Place] = [
    (SelectionVerdict, "filled_up"),
    (RoundOffer, "noise"),
    (ClientResult, "declined"),
    (ClientResult, "accepted"),
]


@pytest.mark.parametrize("value", ["unheard_of", "TRAINING", "", 0, True, ["open"]], ids=repr)
def test_a_state_is_one_of_those_that_are_named(read: Reader, value: object) -> None:
    assert codes_by_place(read, STATES, value) == {key: ["enum"] for key in STATES}


@pytest.mark.parametrize("value", [0, 1, 1.0, "true", None], ids=repr)
def test_a_switch_is_true_or_false(read: Reader, value: object) -> None:
    assert codes_by_place(read, SWITCHES, value) == {key: ["bool_type"] for key in SWITCHES}
