"""Requests and answers: what they accept, refuse and keep."""

import json
import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.mechanisms import MechanismName
from qidpfl_shared.protocol import messages
from qidpfl_shared.protocol.fields import MAX_TEXT, Message
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    ClientResult,
    ClientSummary,
    CreatedTask,
    CreateTask,
    Declaration,
    Decline,
    EnrolAnswer,
    EnrolRequest,
    Event,
    Join,
    Ledger,
    LedgerEntry,
    ModelInfo,
    Profile,
    RoundOffer,
    RoundResult,
    RoundState,
    RoundTiming,
    SelectionVerdict,
    SpendState,
    TaskState,
    TaskSummary,
    TaskView,
    UpdateReceipt,
)
from qidpfl_shared.protocol.presets import preset

Json = dict[str, Any]
Reader = Callable[[type[Message], Json], Message]
Place = tuple[type[Message], str]

NOON = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4
BUDGET_REQUEST: TypeAdapter[Declaration | Decline | Join] = TypeAdapter(BudgetRequest)

OFFER = RoundOffer(
    round_number=3,
    attempt=2,
    reward_micro=18_087_528,
    total=0.0171831516,
    standing=Standing.INVITED,
    model_version=2,
    model_digest=DIGEST,
    mechanism=MechanismName.GRADIENT_ONCE,
    clip_norm=1.0,
    dimension=7850,
    rho_max=0.02,
    noise=True,
    declare_by=NOON,
    deliver_by=NOON + timedelta(seconds=120),
    declare_in_s=29.5,
    deliver_in_s=149.5,
)
RESULT = ClientResult(
    client_id="c-1",
    ordinal=0,
    standing=Standing.INVITED,
    rho=0.001,
    declined=False,
    delivered=True,
    verdict=NoiseVerdict.CONSISTENT,
    accepted=True,
    payment_micro=904_376,
    regret=0.0,
)
ENTRY = LedgerEntry(
    release="round/3",
    mechanism="gradient_once",
    state=SpendState.SPENT,
    rho=0.001,
    proven_rho=0.001,
    digest=DIGEST,
    payment_micro=904_376,
)
SUMMARY = TaskSummary(
    task_id="t-1",
    name="first",
    preset="digits",
    state=TaskState.TRAINING,
    settled_rounds=2,
    horizon=20,
    clients=10,
    paid_micro=30_000_000,
)
VIEW = TaskView(**dict(SUMMARY), spec=preset("digits"), spec_digest=preset("digits").digest)
TIMING = RoundTiming(opened_at=NOON, settled_at=NOON, settlement_s=0.02, evaluation_s=0.4)

EXAMPLES: tuple[Message, ...] = (
    SUMMARY,
    VIEW,
    CreateTask(name="digits-1", preset="digits", overrides={"game": {"horizon": 5}}, single_use_codes=3),
    CreatedTask(task=VIEW, enrolment_codes=("t-1.secret",)),
    EnrolRequest(enrolment_code="t-1.s3cret_", enrolment_key="k" * 16, ordinal=4),
    EnrolAnswer(client_id="c-1", token="t" * 43, ordinal=4, spec_digest=DIGEST),
    Profile(label_counts=(3, 0, 4), size=7, privacy_value=1.02, histogram_rho=0.1, rho_cap=0.2, lifetime_rho=3.0),
    SelectionVerdict(selected=True, label_distance=0.4, distance_threshold=0.75, profiles=10, selected_clients=7),
    ClientSummary(
        client_id="c-1",
        ordinal=4,
        state="selected",
        size=7,
        privacy_value=1.02,
        label_counts=(3, 0, 4),
        histogram_rho=0.1,
        rho_cap=0.2,
        lifetime_rho=3.0,
        label_distance=0.4,
    ),
    OFFER,
    Announcement(task_state=TaskState.TRAINING, round=OFFER),
    Declaration(rho=0.001),
    Decline(decline=True, reason="lifetime budget exhausted"),
    Join(join=True),
    BudgetReceipt(round_number=3, state="declared", rho=0.001, recorded_at=NOON),
    UpdateReceipt(round_number=3, client_id="c-1", digest=DIGEST, byte_length=31_400, received_at=NOON),
    RESULT,
    RoundResult(
        round_number=3,
        attempt=1,
        state=RoundState.SETTLED,
        reward_micro=18_087_528,
        paid_micro=17_183_152,
        kept_micro=904_376,
        total=0.0171831516,
        declared_total=0.017,
        updates=19,
        model_version=3,
        model_digest=DIGEST,
        accuracy=0.86,
        loss=0.47,
        timing=TIMING,
        own=RESULT,
        clients=(RESULT, RESULT),
    ),
    TIMING,
    ENTRY,
    Ledger(client_id="c-1", entries=(ENTRY,), spent_rho=0.001, epsilon=0.1573, delta=1e-5, earned_micro=904_376),
    ModelInfo(version=0, digest=DIGEST, dimension=7850, byte_length=31_400),
    Event(id=17, at=NOON, kind="round.settled", round_number=3, detail="19 updates"),
)
every_message = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


def body_of(message: Message) -> Json:
    body: Json = json.loads(message.model_dump_json())
    return body


def example(kind: type[Message]) -> Json:
    return body_of(next(message for message in EXAMPLES if type(message) is kind))


def read_objects(kind: type[Message], body: Json) -> Message:
    return kind.model_validate(body)


def read_text(kind: type[Message], body: Json) -> Message:
    return kind.model_validate_json(json.dumps(body))


def codes_of(read: Callable[..., object], *arguments: object) -> list[str]:
    """The codes of a refusal; none at all if it is accepted."""
    try:
        read(*arguments)
    except ValidationError as refusal:
        return [error["type"] for error in refusal.errors()]
    return []


def changed(place: Place, value: object) -> Json:
    kind, field = place
    return example(kind) | {field: value}


def codes_by_place(read: Reader, places: list[Place], value: object) -> dict[Place, list[str]]:
    return {place: codes_of(read, place[0], changed(place, value)) for place in places}


def place_id(place: Place) -> str:
    return f"{place[0].__name__}.{place[1]}"


@pytest.fixture(params=[read_objects, read_text], ids=["objects", "text"])
def read(request: pytest.FixtureRequest) -> Reader:
    reader: Reader = request.param
    return reader


# --- every message ---------------------------------------------------------------------------------------------------


def test_every_message_has_an_example() -> None:
    defined = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == messages.__name__
    }
    assert defined == {type(message) for message in EXAMPLES}


@every_message
def test_a_message_survives_json(read: Reader, message: Message) -> None:
    assert read(type(message), body_of(message)) == message


@every_message
def test_both_ways_of_writing_a_message_agree(message: Message) -> None:
    assert message.model_dump(mode="json") == body_of(message)


@every_message
def test_a_message_is_frozen(message: Message) -> None:
    field = next(iter(type(message).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(message, field, getattr(message, field))


@every_message
def test_a_message_refuses_an_unknown_field(read: Reader, message: Message) -> None:
    assert codes_of(read, type(message), body_of(message) | {"extra": None}) == ["extra_forbidden"]


@every_message
def test_a_message_names_every_required_field_that_is_missing(read: Reader, message: Message) -> None:
    required = [name for name, field in type(message).model_fields.items() if field.is_required()]
    assert codes_of(read, type(message), {}) == ["missing"] * len(required)


@pytest.mark.parametrize("body", [None, [], "{}", 1, True, math.nan], ids=repr)
def test_a_message_is_an_object(body: object) -> None:
    codes = {type(message): codes_of(type(message).model_validate, body) for message in EXAMPLES}
    assert codes == {key: ["model_type"] for key in codes}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "json_invalid"),
        ("{", "json_invalid"),
        ("nul", "json_invalid"),
        ("{}{}", "json_invalid"),
        ('{"\\ud800": 1}', "json_invalid"),
        ("\ufeff{}", "json_invalid"),
        ("[" * 10_000, "json_invalid"),
        ("[]", "model_type"),
        ("NaN", "model_type"),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_text_that_holds_no_object_is_refused(text: str, code: str) -> None:
    codes = {type(message): codes_of(type(message).model_validate_json, text) for message in EXAMPLES}
    assert codes == {key: [code] for key in codes}


@every_message
def test_a_message_has_a_closed_json_schema(message: Message) -> None:
    assert type(message).model_json_schema()["additionalProperties"] is False


# --- numbers ---------------------------------------------------------------------------------------------------------

FLOATS: list[Place] = [
    (Declaration, "rho"),
    (Profile, "privacy_value"),
    (Profile, "histogram_rho"),
    (Profile, "rho_cap"),
    (Profile, "lifetime_rho"),
    (SelectionVerdict, "label_distance"),
    (RoundOffer, "total"),
    (RoundOffer, "clip_norm"),
    (RoundOffer, "rho_max"),
    (RoundOffer, "declare_in_s"),
    (BudgetReceipt, "rho"),
    (ClientResult, "rho"),
    (ClientResult, "regret"),
    (RoundResult, "accuracy"),
    (RoundResult, "declared_total"),
    (LedgerEntry, "proven_rho"),
    (Ledger, "spent_rho"),
    (Ledger, "epsilon"),
    (Ledger, "delta"),
]
INTEGERS: list[Place] = [
    (EnrolRequest, "ordinal"),
    (Profile, "size"),
    (SelectionVerdict, "profiles"),
    (RoundOffer, "round_number"),
    (RoundOffer, "attempt"),
    (RoundOffer, "reward_micro"),
    (RoundOffer, "model_version"),
    (RoundOffer, "dimension"),
    (UpdateReceipt, "byte_length"),
    (ClientResult, "payment_micro"),
    (Ledger, "earned_micro"),
    (Event, "id"),
    (TaskSummary, "paid_micro"),
]
MONEY: list[Place] = [
    (TaskSummary, "paid_micro"),
    (RoundOffer, "reward_micro"),
    (ClientResult, "payment_micro"),
    (RoundResult, "reward_micro"),
    (RoundResult, "paid_micro"),
    (RoundResult, "kept_micro"),
    (LedgerEntry, "payment_micro"),
    (Ledger, "earned_micro"),
]
BOUNDED: dict[Place, tuple[float, float]] = {
    (Declaration, "rho"): (1e-12, 1e9),
    (RoundOffer, "rho_max"): (1e-12, 1e9),
    (Profile, "histogram_rho"): (1e-12, 1e9),
    (Profile, "rho_cap"): (1e-12, 1e9),
    (Profile, "lifetime_rho"): (1e-12, 1e9),
    (Profile, "privacy_value"): (1e-9, 1e9),
}
every_bounded_number = pytest.mark.parametrize(
    ("place", "bounds"), [pytest.param(place, bounds, id=place_id(place)) for place, bounds in BOUNDED.items()]
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_must_be_finite(read: Reader, value: float) -> None:
    assert codes_by_place(read, FLOATS, value) == {key: ["finite_number"] for key in FLOATS}


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "1" + "0" * 400], ids=["1e999", "-1e999", "10**400"])
def test_a_number_too_large_for_a_float_is_refused_in_text(digits: str) -> None:
    texts = {place: json.dumps(changed(place, "HERE")).replace('"HERE"', digits) for place in FLOATS}
    codes = {(kind, field): codes_of(kind.model_validate_json, text) for (kind, field), text in texts.items()}
    assert codes == {key: ["finite_number"] for key in FLOATS}


def test_a_whole_number_too_large_for_a_float_is_refused_among_objects() -> None:
    assert codes_by_place(read_objects, FLOATS, 10**400) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("value", [True, False, "0.5", [0.5], {}], ids=repr)
def test_a_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, FLOATS, value) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("place", FLOATS, ids=place_id)
def test_a_number_may_not_be_negative(read: Reader, place: Place) -> None:
    assert codes_of(read, place[0], changed(place, -1e-9))[0] in {"greater_than", "greater_than_equal"}


@pytest.mark.parametrize("value", [1e30, 10**30], ids=["1e30", "10**30"])
def test_what_a_client_states_has_an_upper_bound(read: Reader, value: float) -> None:
    stated = [place for place in FLOATS if place[0] in (Declaration, Profile)]
    assert codes_by_place(read, stated, value) == {key: ["less_than_equal"] for key in stated}


@pytest.mark.parametrize("value", [True, 3.0, 3.5, "3", math.nan, math.inf, [3]], ids=repr)
def test_a_whole_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, INTEGERS, value) == {key: ["int_type"] for key in INTEGERS}


@pytest.mark.parametrize("value", [2**53, 10**30], ids=["2**53", "10**30"])
def test_a_whole_number_fits_into_every_json_reader(read: Reader, value: int) -> None:
    assert codes_by_place(read, INTEGERS, value) == {key: ["less_than_equal"] for key in INTEGERS}


def test_a_whole_number_may_not_be_negative(read: Reader) -> None:
    assert codes_by_place(read, INTEGERS, -1) == {key: ["greater_than_equal"] for key in INTEGERS}


@given(rho=st.floats(1e-12, 1e9))
def test_a_budget_keeps_its_last_bit(rho: float) -> None:
    assert Declaration.model_validate_json(Declaration(rho=rho).model_dump_json()).rho == rho


@every_bounded_number
def test_a_budget_and_a_privacy_value_reach_to_their_bounds(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    assert [getattr(read(place[0], changed(place, bound)), place[1]) for bound in bounds] == list(bounds)


@every_bounded_number
def test_a_budget_or_a_privacy_value_just_below_its_bound_is_refused(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    below = math.nextafter(bounds[0], 0)
    assert codes_of(read, place[0], changed(place, below)) == ["greater_than_equal"]


@every_bounded_number
def test_a_budget_or_a_privacy_value_just_above_its_bound_is_refused(
    read: Reader, place: Place, bounds: tuple[float, float]
) -> None:
    above = math.nextafter(bounds[1], math.inf)
    assert codes_of(read, place[0], changed(place, above)) == ["less_than_equal"]


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-13], ids=repr)
def test_a_budget_that_drowns_in_rounding_is_refused(read: Reader, value: float) -> None:
    assert codes_by_place(read, list(BOUNDED), value) == {key: ["greater_than_equal"] for key in BOUNDED}


@pytest.mark.parametrize("micro", [0, 1, MAX_MICRO - 1, MAX_MICRO])
def test_money_keeps_its_last_unit(read: Reader, micro: int) -> None:
    kept = {place: body_of(read(place[0], changed(place, micro)))[place[1]] for place in MONEY}
    assert kept == {key: micro for key in MONEY}


@pytest.mark.parametrize("micro", [MAX_MICRO + 1, 2**53 - 1], ids=["one too many", "2**53 - 1"])
def test_money_ends_at_a_billion_units(read: Reader, micro: int) -> None:
    assert codes_by_place(read, MONEY, micro) == {key: ["less_than_equal"] for key in MONEY}


def test_every_field_for_money_is_tested() -> None:
    fields = {(type(message), name) for message in EXAMPLES for name in type(message).model_fields}
    money = {(kind, name) for kind, name in fields if name.endswith("_micro") and kind is not TaskView}
    assert money == set(MONEY)


# --- text and times --------------------------------------------------------------------------------------------------

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
def test_text_that_is_no_time_is_refused(read: Reader, at: str) -> None:
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
def test_a_time_is_no_number_and_nothing_else(read: Reader, value: object) -> None:
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


# --- profiles --------------------------------------------------------------------------------------------------------


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
        pytest.param(None, "wrong_type", id="null instead of a list"),
    ],
)
def test_a_histogram_holds_counts_only(read: Reader, counts: object, code: str) -> None:
    assert codes_of(read, Profile, example(Profile) | {"label_counts": counts}) == [code]


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


# --- answers to an offer ---------------------------------------------------------------------------------------------


def answer_of_text(body: object) -> Message:
    return BUDGET_REQUEST.validate_json(json.dumps(body))


@pytest.fixture(params=[BUDGET_REQUEST.validate_python, answer_of_text], ids=["objects", "text"])
def answer_of(request: pytest.FixtureRequest) -> Callable[[object], Message]:
    reader: Callable[[object], Message] = request.param
    return reader


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"rho": 0.5}, Declaration(rho=0.5)),
        ({"rho": 1}, Declaration(rho=1.0)),
        ({"decline": True, "reason": ""}, Decline(decline=True, reason="")),
        ({"join": True}, Join(join=True)),
    ],
)
def test_an_answer_is_known_by_its_fields(answer_of: Callable[[object], Message], body: Json, answer: Message) -> None:
    assert answer_of(body) == answer


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rho": 0},
        {"rho": -0.0},
        {"rho": None},
        {"rho": 0.5, "join": True},
        {"rho": 0.5, "decline": True, "reason": ""},
        {"decline": True},
        {"decline": False, "reason": "no"},
        {"decline": "true", "reason": "no"},
        {"decline": 1, "reason": "no"},
        {"decline": 1.0, "reason": "no"},
        {"join": False},
        {"join": None},
        {"join": 1},
        {"join": 1.0},
        {"join": "true"},
        {"rho": 1e-13},
        {"join": True, "reason": "why not"},
        [{"rho": 0.5}],
        0.5,
    ],
    ids=repr,
)
def test_an_answer_is_exactly_one_of_three(answer_of: Callable[[object], Message], body: object) -> None:
    with pytest.raises(ValidationError):
        answer_of(body)


YES: list[Place] = [(Decline, "decline"), (Join, "join")]


@pytest.mark.parametrize("value", [0, 1, 1.0, "true", "yes", None, [], [True], {}], ids=repr)
def test_yes_is_no_number_and_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_place(read, YES, value) == {key: ["bool_type"] for key in YES}


def test_yes_is_never_no(read: Reader) -> None:
    assert codes_by_place(read, YES, False) == {key: ["must_be_true"] for key in YES}


def test_the_schema_says_that_yes_is_true() -> None:
    schemas = {(kind, field): kind.model_json_schema()["properties"][field] for kind, field in YES}
    assert {key: (schema["type"], schema["const"]) for key, schema in schemas.items()} == dict.fromkeys(
        YES, ("boolean", True)
    )


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("kind", [EnrolRequest, Profile, Declaration, Decline, Join])
@given(data=st.data())
def test_a_request_is_read_or_refused_but_never_fails(kind: type[Message], data: st.DataObject) -> None:
    body = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(kind.model_fields, ANY_JSON)))
    try:
        message = kind.model_validate(body)
    except ValidationError:
        return
    assert kind.model_validate_json(message.model_dump_json()) == message


# --- ledgers and results ---------------------------------------------------------------------------------------------


def test_an_infinite_proven_budget_is_null() -> None:
    entry = LedgerEntry.model_validate(body_of(ENTRY) | {"proven_rho": None})
    assert json.loads(entry.model_dump_json())["proven_rho"] is None


@pytest.mark.parametrize("field", ["spent_rho", "epsilon"])
def test_an_infinite_sum_of_a_ledger_is_null(field: str) -> None:
    ledger = Ledger.model_validate(example(Ledger) | {field: None})
    assert json.loads(ledger.model_dump_json())[field] is None


def test_what_is_proven_cannot_be_left_unsaid(read: Reader) -> None:
    body = {name: value for name, value in body_of(ENTRY).items() if name != "proven_rho"}
    assert codes_of(read, LedgerEntry, body) == ["missing"]


def test_a_heuristic_may_prove_a_vacuous_budget(read: Reader) -> None:
    entry = read(LedgerEntry, body_of(ENTRY) | {"rho": 0.01, "proven_rho": 0.01 * 3000**2})
    assert isinstance(entry, LedgerEntry) and entry.proven_rho == 90_000.0


@pytest.mark.parametrize("state", TaskState)
def test_a_task_without_an_open_round_announces_its_state_alone(read: Reader, state: TaskState) -> None:
    announcement = read(Announcement, {"task_state": state.value})
    assert announcement == Announcement(task_state=state, reason=None, round=None)


def test_a_task_of_its_own_making_has_no_preset(read: Reader) -> None:
    summary = read(TaskSummary, body_of(SUMMARY) | {"preset": None})
    assert isinstance(summary, TaskSummary) and summary.preset is None


def test_a_task_is_read_back_with_the_digest_that_clients_pin() -> None:
    view = next(message for message in EXAMPLES if isinstance(message, TaskView))
    copy = TaskView.model_validate_json(view.model_dump_json())
    assert copy.spec.digest == copy.spec_digest


@pytest.mark.parametrize("field", ["label_distance", "distance_threshold"])
def test_no_label_distance_exceeds_two(read: Reader, field: str) -> None:
    body = example(SelectionVerdict) | {field: math.nextafter(2.0, 3.0)}
    assert codes_of(read, SelectionVerdict, body) == ["less_than_equal"]


@pytest.mark.parametrize("accuracy", [-0.01, 1.01])
def test_an_accuracy_is_a_fraction(read: Reader, accuracy: float) -> None:
    body = example(RoundResult) | {"accuracy": accuracy}
    assert codes_of(read, RoundResult, body)[0] in {"greater_than_equal", "less_than_equal"}


@pytest.mark.parametrize("field", ["own", "clients", "accuracy", "loss", "model_digest", "declared_total"])
def test_a_result_may_omit_private_and_unknown_fields(read: Reader, field: str) -> None:
    result = read(RoundResult, example(RoundResult) | {field: None})
    assert getattr(result, field) is None
