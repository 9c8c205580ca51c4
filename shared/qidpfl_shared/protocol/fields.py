"""The base of every message, and the types of its fields: strict, bounded, finite."""

from collections.abc import Sized
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from ..core.money import MAX_MICRO

# The largest whole number that every JSON parser keeps exactly.
MAX_SAFE_INTEGER = 2**53 - 1
# One GiB of float32.
MAX_DIMENSION = 2**28

MAX_TEXT = 1000
MAX_LABELS = 100_000

Item = TypeVar("Item")


def _instance(value: object, *kinds: type) -> object:
    """Refuse values that lax validation would convert, such as numbers to times or sets to lists."""
    if not isinstance(value, kinds):
        raise PydanticCustomError("wrong_type", "Input has the wrong type")
    return value


def _label_list(value: object) -> object:
    _instance(value, list, tuple)
    length = len(value) if isinstance(value, Sized) else 0
    if not 1 <= length <= MAX_LABELS:
        raise PydanticCustomError("too_long" if length else "too_short", "There must be 1 to 100000 labels")
    return value


def is_absent(value: object) -> bool:
    """For `exclude_if` of fields that older specs lack. An empty field leaves their JSON and digest unchanged."""
    return value is None


def is_absent_step(value: object) -> bool:
    """For `exclude_if` of a named step: `none` is the same as an absent one."""
    return value is None or value == "none"


def is_contest(value: object) -> bool:
    """For `exclude_if` of the market: the paper's contest is the same as an absent one."""
    return value is None or value == "contest"


def _true(value: bool) -> bool:
    if not value:
        raise PydanticCustomError("must_be_true", "Input should be true")
    return value


class Message(BaseModel):
    """Frozen; refuses unknown fields, wrong types, NaN and infinities.

    A client reads answers with `extra="allow"`, so that a later coordinator may send more fields.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def facts(self) -> dict[str, Any]:
        """All values as JSON, also of fields that this version does not know: digests and signatures cover them."""
        found = self.model_dump(mode="json")
        _add_unknown(self, found)
        return found


def _add_unknown(message: Message, found: dict[str, Any]) -> None:
    """Add what `model_dump` leaves out: the unknown fields of a message and of the messages in it."""
    if message.model_extra:
        found.update(message.model_extra)
    # The fields as pydantic stores them: a lookup by name would cost more than the rest.
    for name, value in message.__dict__.items():
        kind = type(value)
        if kind in _PLAIN or name not in found:
            continue
        if isinstance(value, Message):
            _add_unknown(value, found[name])
        elif kind is tuple and value and isinstance(value[0], Message):
            for item, inner in zip(value, found[name], strict=True):
                _add_unknown(item, inner)


# The types of most fields. Values of these types hold no messages.
_PLAIN = frozenset({str, int, float, bool, type(None), datetime})


# JSON has no tuples, enumerations or times. These types accept lists and strings; their contents stay strict. A list
# stops at its first wrong item: each error costs more memory than the item.
_is_list = BeforeValidator(lambda value: _instance(value, list, tuple))
Tuple = Annotated[tuple[Item, ...], Field(strict=False, fail_fast=True), _is_list]
Choice = Annotated[Item, Field(strict=False)]
Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(lambda value: _instance(value, str, datetime))]

Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
# Not a `Tuple` with limits: pydantic would count the items before the first wrong one, and document the limits within a
# union as the length of a text.
LabelCounts = Annotated[
    tuple[Count, ...],
    Field(strict=False, fail_fast=True, json_schema_extra={"minItems": 1, "maxItems": MAX_LABELS}),
    BeforeValidator(lambda value: _label_list(value)),
]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]
Micro = Annotated[int, Field(ge=0, le=MAX_MICRO, description="money in micro-units (1 unit = 1,000,000)")]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Rho = Annotated[float, Field(ge=1e-12, le=1e9, description="privacy budget in zCDP")]
SpentRho = Annotated[float, Field(ge=0, description="privacy budget in zCDP")]
PrivacyValue = Annotated[float, Field(ge=1e-9, le=1e9, description="value of one unit of budget to the client (ν)")]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00-\x1f\x7f]*$", description="one line")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, lower-case hexadecimal")]
RoundNumber = Annotated[int, Field(ge=1, le=1_000_000)]
Attempt = Annotated[int, Field(ge=1, le=1000)]
Yes = Annotated[bool, AfterValidator(_true), Field(json_schema_extra={"const": True})]
ModelVersion = Annotated[int, Field(ge=0, le=1_000_000)]
Secret = Annotated[str, Field(min_length=16, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
EnrolmentCode = Annotated[
    str,
    Field(max_length=400, pattern=r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$", description="{task_id}.{secret}"),
]
LabelDistance = Annotated[float, Field(ge=0, le=2, description="L1 distance of label frequencies to the reference")]
# A value of an event.
FieldValue = bool | int | float | str | dict[str, int] | None
