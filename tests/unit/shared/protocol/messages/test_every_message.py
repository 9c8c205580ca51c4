"""What every request and every answer keeps and refuses."""

import math

import pytest
from pydantic import ValidationError

from qidpfl_shared.protocol import credentials, ledger, messages, operators
from qidpfl_shared.protocol.fields import Message
from support.protocol.message_examples import EXAMPLES, Reader, body_of
from support.protocol.refusals import codes_of

every_message = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


def test_every_message_has_an_example() -> None:
    defined = {
        kind
        for module in (messages, credentials, ledger, operators)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == module.__name__
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
