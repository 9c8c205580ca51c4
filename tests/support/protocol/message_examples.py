"""One example of every message, and changes of it."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.mechanisms import MechanismName
from qidpfl_shared.protocol.credentials import (
    CertificateEnrolment,
    CreatedOperatorToken,
    CreateOperatorToken,
    NewClientToken,
    OperatorRole,
    OperatorTokenInfo,
    RotateOperatorToken,
)
from qidpfl_shared.protocol.fields import Message
from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry, SpendState
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    ClientResult,
    ClientSummary,
    Declaration,
    Decline,
    EnrolAnswer,
    EnrolRequest,
    Event,
    Join,
    ModelInfo,
    Profile,
    RoundOffer,
    RoundResult,
    RoundState,
    RoundTiming,
    SelectionVerdict,
    TaskState,
    TaskSummary,
    TaskView,
    UpdateReceipt,
)
from qidpfl_shared.protocol.operators import (
    AccountPage,
    AccountSummary,
    AnswerState,
    CalibrationPoint,
    ClientAnswer,
    ClientRound,
    CreateCodes,
    CreatedCodes,
    CreatedTask,
    CreateTask,
    Deadlines,
    EnrolmentCodeInfo,
    ExpectedAccuracy,
    Forecast,
    Identity,
    LossForecast,
    OpenRound,
    PresetInfo,
    RoundCost,
    RoundOutcomes,
    RoundProgress,
    RoundSummary,
    WhatIf,
    WhatIfRequest,
)
from qidpfl_shared.protocol.presets import preset
from support.protocol.refusals import Json, codes_of

Reader = Callable[[type[Message], Json], Message]
Place = tuple[type[Message], str]

NOON = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4
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

TOKEN_INFO = OperatorTokenInfo(
    token_id="a1",
    name="dashboard",
    role=OperatorRole.VIEWER,
    task_id="t-1",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    expires_at=datetime(2026, 2, 1, tzinfo=UTC),
    revoked_at=None,
    rotated_at=None,
)
ANSWER = ClientAnswer(client_id="c-1", ordinal=4, standing=Standing.INVITED, answer=AnswerState.AWAITED)
OPEN_ROUND = OpenRound(
    round_number=3,
    attempt=1,
    reward_micro=5,
    total=0.5,
    min_updates=2,
    opened_at=NOON,
    declare_by=NOON,
    deliver_by=NOON,
    declare_in_s=1.5,
    deliver_in_s=2.5,
    clients=(ANSWER,),
)
ACCOUNT = AccountSummary(
    client_id="c-1",
    ordinal=4,
    releases=3,
    spent_rho=0.2,
    epsilon=2.5,
    delta=1e-5,
    guarantee="proven",
    lifetime_rho=1.0,
    left_rho=0.8,
    answering=True,
    earned_micro=7,
    escrow_micro=1,
    utility=-0.5,
)
OPERATOR_EXAMPLES: tuple[Message, ...] = (
    Identity(role=OperatorRole.VIEWER, task_id="t-1"),
    PresetInfo(name="digits", description="ten clients", spec=preset("digits")),
    RoundSummary(
        round_number=3,
        attempt=1,
        state=RoundState.SETTLED,
        reward_micro=5,
        paid_micro=3,
        escrow_micro=1,
        kept_micro=1,
        total=0.5,
        declared_total=0.4,
        invited=3,
        updates=2,
        accuracy=0.8,
        loss=0.4,
        opened_at=NOON,
        settled_at=NOON,
        settlement_s=0.1,
        evaluation_s=0.2,
    ),
    ANSWER,
    OPEN_ROUND,
    RoundProgress(task_state=TaskState.TRAINING, paused=False, last_event=7, round=OPEN_ROUND),
    RoundOutcomes(
        round_number=3,
        state=RoundState.SETTLED,
        ordinals=(0, 4),
        outcomes="dm",
        rho=(0.4, 0.0),
        payment_micro=(4, 0),
    ),
    RoundCost(round_number=3, cost=1.5, reward_cost=0.5, regret=0.25),
    ClientRound(
        round_number=3,
        state=RoundState.SETTLED,
        standing=Standing.INVITED,
        outcome="d",
        rho=0.4,
        payment_micro=3,
        escrow_micro=1,
        utility=-0.4,
        verdict=NoiseVerdict.CONSISTENT,
        alignment=0.5,
        digest=DIGEST,
        received_at=NOON,
    ),
    ACCOUNT,
    AccountPage(accounts=(ACCOUNT,), statement="every record: 0.2-zCDP"),
    Forecast(status="fitted", ceiling=0.9, drop=0.8, rate=1.0, total_min=0.5, total_max=2.0, rmse=0.01),
    LossForecast(floor=0.2, rise=1.5, rate=1.0, total_min=0.5, total_max=2.0, rmse=0.01),
    EnrolmentCodeInfo(code_id="0123456789abcdef01234567", single_use=True, used_by="c-1", revoked_at=NOON),
    CreateCodes(count=2, single_use=False),
    CreatedCodes(enrolment_codes=("t-1.secret",)),
    Deadlines(declare_s=60.0, deliver_s=120.0),
    CalibrationPoint(noise=0.4, accuracy=0.85),
    WhatIfRequest(
        reward_factor=1.5, rounds=10, without=(3,), calibration=(CalibrationPoint(noise=0.4, accuracy=0.85),)
    ),
    ExpectedAccuracy(low=0.84, expected=0.85, high=0.86),
    WhatIf(
        status="answered",
        rounds=10,
        money_micro=100_000_000,
        first_reward_micro=9_000_000,
        last_reward_micro=11_000_000,
        noise=0.4,
        worst_rho=0.7,
        worst_epsilon=5.7,
        worst_ordinal=2,
        accuracy=ExpectedAccuracy(low=0.84, expected=0.85, high=0.86),
    ),
)
EXAMPLES: tuple[Message, ...] = (
    *OPERATOR_EXAMPLES,
    CreateOperatorToken(name="dashboard", role=OperatorRole.ADMIN, task_id="t-1", valid_s=60.0),
    RotateOperatorToken(overlap_s=0.0, valid_s=60.0),
    TOKEN_INFO,
    CreatedOperatorToken(token="t" * 43, info=TOKEN_INFO),
    NewClientToken(token="t" * 43),
    CertificateEnrolment(ordinal=4),
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
    BudgetReceipt(round_number=3, state="declared", rho=0.001, payment_micro=902_116, recorded_at=NOON),
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


def body_of(message: Message) -> Json:
    body: Json = json.loads(message.model_dump_json())
    return body


def example(kind: type[Message]) -> Json:
    return body_of(next(message for message in EXAMPLES if type(message) is kind))


def read_objects(kind: type[Message], body: Json) -> Message:
    return kind.model_validate(body)


def read_text(kind: type[Message], body: Json) -> Message:
    return kind.model_validate_json(json.dumps(body))


def changed(place: Place, value: object) -> Json:
    kind, field = place
    return example(kind) | {field: value}


def codes_by_place(read: Reader, places: list[Place], value: object) -> dict[Place, list[str]]:
    return {place: codes_of(read, place[0], changed(place, value)) for place in places}


def place_id(place: Place) -> str:
    return f"{place[0].__name__}.{place[1]}"


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
