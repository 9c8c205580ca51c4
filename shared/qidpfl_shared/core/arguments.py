"""The checks of arguments, and `ImpossibleArgument`, the only error that they raise."""

import math
from collections.abc import Sequence
from enum import Enum
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = Sequence[float] | npt.NDArray[Any]


Kind = TypeVar("Kind", bound=Enum)

LARGEST_WHOLE = 2**53


class ImpossibleArgument(ValueError):
    """An argument outside its range. The message names it, shows its value and says what is possible."""

    def __init__(self, name: str, value: object, requirement: str) -> None:
        try:
            shown = repr(value)
        except ValueError:  # Python does not print whole numbers of thousands of digits
            shown = f"a {type(value).__name__} too long to show"
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        super().__init__(f"{name} = {shown}: {requirement}")
        self.name = name
        self.value = value
        self.requirement = requirement


def real(name: str, value: object) -> float:
    """A finite number as float. Text, booleans, NaN and infinities are refused."""
    number = _as_float(name, value)
    if not math.isfinite(number):
        raise ImpossibleArgument(name, value, "must be finite")
    return number


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    number = real(name, value)
    if number <= 0:
        raise ImpossibleArgument(name, value, "must be greater than 0")
    return number


def magnitude(name: str, value: object) -> float:
    """A number above 0 whose square neither underflows nor overflows."""
    number = positive(name, value)
    if not 1e-60 <= number <= 1e60:
        raise ImpossibleArgument(name, value, "must lie between 1e-60 and 1e60")
    return number


def at_least_one(name: str, value: object) -> float:
    """A finite number of at least 1: a multiple that only enlarges."""
    number = real(name, value)
    if number < 1:
        raise ImpossibleArgument(name, value, "must be at least 1")
    return number


def non_negative(name: str, value: object) -> float:
    """A finite number of at least 0."""
    number = real(name, value)
    if number < 0:
        raise ImpossibleArgument(name, value, "must not be negative")
    return number


def limit(name: str, value: object) -> float:
    """An upper limit: at least 0; infinity means no limit."""
    number = _as_float(name, value)
    if math.isnan(number) or number < 0:
        raise ImpossibleArgument(name, value, "must be a limit of at least 0 (infinity: no limit)")
    return number


def probability(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    number = real(name, value)
    if not 0 < number < 1:
        raise ImpossibleArgument(name, value, "must lie strictly between 0 and 1")
    return number


def weight_below_one(name: str, value: object) -> float:
    """A number in [0, 1)."""
    number = real(name, value)
    if not 0 <= number < 1:
        raise ImpossibleArgument(name, value, "must lie in [0, 1)")
    return number


def fraction(name: str, value: object) -> float:
    """A number in [0, 1]."""
    number = real(name, value)
    if not 0 <= number <= 1:
        raise ImpossibleArgument(name, value, "must lie in [0, 1]")
    return number


def discount_factor(name: str, value: object) -> float:
    """A number in (0, 1]."""
    number = real(name, value)
    if not 0 < number <= 1:
        raise ImpossibleArgument(name, value, "must lie in (0, 1]")
    return number


def whole(name: str, value: object, *, minimum: int = 0) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise ImpossibleArgument(name, value, "must be a whole number")
    number = int(value)
    if number < minimum:
        raise ImpossibleArgument(name, value, f"must be at least {minimum}")
    if number > LARGEST_WHOLE:
        raise ImpossibleArgument(name, value, "must not exceed 2^53, or floats cannot count it")
    return number


def whole_numbers(name: str, values: Sequence[int], *, minimum: int = 0) -> list[int]:
    """Whole numbers of at least `minimum`. Plain integers are checked together: there may be many."""
    if set(map(type, values)) == {int} and min(values) >= minimum and max(values) <= LARGEST_WHOLE:
        return list(values)
    return [whole(name, value, minimum=minimum) for value in values]


def truth(name: str, value: object) -> bool:
    """A boolean. Other values that Python treats as true or false are refused."""
    if not isinstance(value, bool | np.bool_):
        raise ImpossibleArgument(name, value, "must be true or false")
    return bool(value)


def choice(name: str, value: object, kind: type[Kind]) -> Kind:
    """A member of an enumeration, given as a member or as its value."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise ImpossibleArgument(name, value, f"must be one of {known}") from None


def vector(name: str, values: object, *, length: int | None = None) -> Vector:
    """A fresh one-dimensional float64 array of finite numbers."""
    array = _as_vector(name, values, length)
    _require_all(name, array, np.isfinite(array), "must be finite")
    return array


def positive_vector(name: str, values: object, *, length: int | None = None) -> Vector:
    """A fresh vector of finite numbers above 0."""
    array = vector(name, values, length=length)
    _require_all(name, array, array > 0, "must be greater than 0")
    return array


def non_negative_vector(name: str, values: object, *, length: int | None = None) -> Vector:
    """A fresh vector of finite numbers of at least 0."""
    array = vector(name, values, length=length)
    _require_all(name, array, array >= 0, "must not be negative")
    return array


def limit_vector(name: str, values: object, *, length: int) -> Vector:
    """A fresh vector of upper limits, each at least 0; infinity means no limit."""
    array = _as_vector(name, values, length)
    # A comparison with NaN is false, so this refuses NaN and negative limits.
    _require_all(name, array, array >= 0, "must be a limit of at least 0 (infinity: no limit)")
    return array


def cap_vector(values: object | None, *, length: int) -> Vector:
    """The clients' caps; None means that no client has one."""
    return np.full(length, np.inf) if values is None else limit_vector("caps", values, length=length)


def count_vector(name: str, values: object, *, length: int | None = None) -> Vector:
    """A fresh vector of counts: whole numbers of at least 0."""
    array = non_negative_vector(name, values, length=length)
    _require_all(name, array, array == np.floor(array), "must be a whole number")
    return array


def size_vector(name: str, values: object, *, length: int | None = None) -> Vector:
    """A fresh vector of numbers of records: whole numbers of at least 1."""
    array = count_vector(name, values, length=length)
    _require_all(name, array, array >= 1, "must be at least 1")
    return array


def count_table(name: str, rows: object, *, width: int | None) -> Vector:
    """A fresh matrix of counts. Without rows it has `width` columns, or 1 if `width` is None."""
    table = _as_numbers(name, rows)
    if table.ndim == 1 and table.size == 0:
        return np.zeros((0, width or 1))
    if table.ndim != 2:
        raise ImpossibleArgument(name, table.shape, "must be a table with two dimensions")
    if width is not None and table.shape[1] != width:
        raise ImpossibleArgument(f"columns of {name}", table.shape[1], f"must be {width}")
    return count_vector(name, table.ravel()).reshape(table.shape)


def mask(name: str, values: object, *, length: int) -> Mask:
    """A fresh array of booleans."""
    try:
        array = np.array(values)
    except ValueError as error:
        raise ImpossibleArgument(name, values, "must be a sequence of truth values") from error
    if array.shape != (length,):
        raise ImpossibleArgument(name, array.shape, f"must have length {length}")
    if length and array.dtype != np.bool_:
        raise ImpossibleArgument(name, array.dtype.name, "must hold truth values")
    return array.astype(np.bool_)


def _as_float(name: str, value: object) -> float:
    # The usual types first: the abstract class of all numbers is slow to ask.
    if type(value) is float:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ImpossibleArgument(name, value, "must be a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ImpossibleArgument(name, value, "must fit into a float") from error


def _as_vector(name: str, values: object, length: int | None) -> Vector:
    array = _as_numbers(name, values)
    if array.ndim != 1:
        raise ImpossibleArgument(name, array.shape, "must have one dimension")
    if length is not None and array.size != length:
        raise ImpossibleArgument(f"len({name})", array.size, f"must be {length}, like the others")
    return array


def _as_numbers(name: str, values: object) -> Vector:
    """A fresh float64 array of whole or real numbers. One text, boolean or complex number among them is refused."""
    if not isinstance(values, np.ndarray | Sequence) or isinstance(values, str | bytes):
        raise ImpossibleArgument(name, values, "must be a sequence of numbers")
    try:
        raw = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ImpossibleArgument(name, values, "must be a sequence of numbers") from error
    # numpy silently converts booleans next to numbers into numbers.
    hidden = not isinstance(values, np.ndarray) and any(isinstance(value, bool | np.bool_) for value in values)
    if hidden or (raw.size > 0 and raw.dtype.kind not in "iuf"):
        raise ImpossibleArgument(name, values, "must be a sequence of numbers")
    return np.array(raw, dtype=np.float64)


def _require_all(name: str, array: Vector, holds: Mask, requirement: str) -> None:
    if not holds.all():
        index = int(np.argmin(holds))
        raise ImpossibleArgument(f"{name}[{index}]", float(array[index]), requirement)
