"""Parses JSON answers within limits of bytes and values, so that no answer costs much memory.

The number of bytes alone does not limit the cost: a few bytes of JSON become an object of a hundred bytes in Python,
and each wrong value becomes an error of pydantic of a thousand. So the values are counted before they are parsed, and
objects with many members, each of which could be an error, are refused before they are validated.
"""

from typing import Annotated, Any, TypeVar

from pydantic import FailFast, TypeAdapter, ValidationError
from pydantic_core import from_json

# An answer may have one value per this many bytes of its limit. Messages of the protocol have fewer.
_BYTES_PER_VALUE = 12
# More than any message has. Lists stop at their first error, so this also limits the number of errors.
_WIDEST_OBJECT = 100
Value = TypeVar("Value")
_adapters: dict[type, TypeAdapter[Any]] = {}


SMALL = 64 << 10
# A spec with a hundred thousand reference weights, or ten thousand tensors.
SPEC = 4 << 20
# What an admin reads: all clients of a round, for example.
LARGE = 16 << 20
_LEDGER_ENTRY = 500
_MOST_LEDGER_ENTRIES = 25_000


def ledger_limit(horizon: int) -> int:
    """The largest ledger of a task with this many rounds, in bytes."""
    return SMALL + _LEDGER_ENTRY * min(horizon, _MOST_LEDGER_ENTRIES)


class NotValid(ValueError):
    """The body is not the expected message. The text does not repeat its values."""


def parse(body: bytes, kind: type[Value], *, limit: int) -> Value:
    """The body as a message of this kind. Raises `NotValid`."""
    return _validated(body, _adapter(kind), limit)


def _adapter(kind: type[Value]) -> TypeAdapter[Value]:
    """The adapter of a kind of message, made once."""
    found: TypeAdapter[Value] | None = _adapters.get(kind)
    if found is None:
        found = _adapters[kind] = TypeAdapter(kind)
    return found


def parse_list(body: bytes, kind: type[Value], *, limit: int) -> list[Value]:
    """The body as a list of messages of this kind. Raises `NotValid`."""
    several: TypeAdapter[list[Value]] = TypeAdapter(Annotated[list[kind], FailFast()])  # type: ignore[valid-type,arg-type]
    return _validated(body, several, limit)


def member_of(body: bytes, name: str, *, limit: int) -> object:
    """A member of a JSON object; None if it is not there. Raises `NotValid`."""
    try:
        found = _parsed(body, limit)
    except NotValid:
        raise
    except (ValueError, ArithmeticError, RecursionError):
        raise NotValid("not JSON, or impossible values") from None
    return found.get(name) if isinstance(found, dict) else None


def problem_members(body: bytes) -> dict[str, object]:
    """The members of a problem document; none if the body is something else, such as the page of a proxy."""
    try:
        found = _parsed(body, SMALL)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _validated(body: bytes, adapter: TypeAdapter[Value], limit: int) -> Value:
    try:
        parsed = _parsed(body, limit)
        # Each member of an object has a colon.
        if body.count(b":") > _WIDEST_OBJECT:
            _check_width(parsed)
        # Not validate_json: every error would hold a copy of its input. A later coordinator may send more fields.
        return adapter.validate_python(parsed, extra="allow")
    except NotValid:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = "/".join(map(str, first["loc"]))
        # Not chained: the error of pydantic shows values, and one of them may be a token.
        raise NotValid(f"/{where}: {first['msg']}") from None
    except (ValueError, ArithmeticError, RecursionError):
        raise NotValid("not JSON, or impossible values") from None


def _parsed(body: bytes, limit: int) -> object:
    # Every value but the first follows one of these characters. Those within strings count too, which is harmless.
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > limit // _BYTES_PER_VALUE:
        raise NotValid(f"more than {limit // _BYTES_PER_VALUE} values")
    return from_json(body)


def _check_width(value: object) -> None:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if len(part) > _WIDEST_OBJECT:
                raise NotValid(f"an object with more than {_WIDEST_OBJECT} members")
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
