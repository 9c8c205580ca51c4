"""JSON as the protocol defines it: UTF-8 without a byte order mark, no repeated key, within the limits of its route."""

import codecs
import json
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

# More than any object of the protocol has.
_MAX_KEYS_OF_AN_OBJECT = 256


@dataclass(frozen=True)
class JsonLimits:
    """What a body may hold. Validation takes time for each key and item, so they are counted before it."""

    size: int
    keys: int
    items: int


# Texts may hold colons and commas too: they count as keys and items.
SMALL_JSON = JsonLimits(size=16 * 1024, keys=2_000, items=2_000)
# A profile with 100,000 labels.
PROFILE_JSON = JsonLimits(size=2 << 20, keys=2_000, items=102_000)
# A task with 10,000 tensors, or with a weight for each of 100,000 labels.
TASK_JSON = JsonLimits(size=2 << 20, keys=25_000, items=102_000)


def json_limits(path: str) -> JsonLimits:
    """The limits of the bodies that a path takes."""
    if path.endswith("/clients/me/profile"):
        return PROFILE_JSON
    return TASK_JSON if path == "/v1/tasks" else SMALL_JSON


def parse(body: bytes, limits: JsonLimits = TASK_JSON) -> Any:
    """The value of a JSON text. Raises `JSONDecodeError` for anything that the protocol does not allow, or a 413."""
    if body.startswith(codecs.BOM_UTF8):
        raise json.JSONDecodeError("a byte order mark", "", 0)
    if len(body) > limits.size or body.count(b":") > limits.keys or body.count(b",") > limits.items:
        raise HTTPException(413)
    try:
        return json.loads(body.decode(), object_pairs_hook=_checked_object)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        # Not UTF-8, nested too deeply, or a number with more digits than Python converts.
        raise json.JSONDecodeError(type(error).__name__, "", 0) from None


def _checked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS_OF_AN_OBJECT:
        raise HTTPException(413)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise json.JSONDecodeError("a repeated key", "", 0)
    return found


def media_type(header: str) -> str:
    """The media type of a Content-Type header in lower case, without its parameters."""
    return header.partition(";")[0].strip().lower()
