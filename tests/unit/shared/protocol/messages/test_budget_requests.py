"""Answers to an offer: a declaration, a decline or a join."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.protocol.fields import Message
from qidpfl_shared.protocol.messages import BudgetRequest, Declaration, Decline, EnrolRequest, Join, Profile
from support.protocol.message_examples import Place, Reader, codes_by_place
from support.protocol.refusals import Json

BUDGET_REQUEST: TypeAdapter[Declaration | Decline | Join] = TypeAdapter(BudgetRequest)


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
def test_only_true_is_accepted_where_true_is_required(read: Reader, value: object) -> None:
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
