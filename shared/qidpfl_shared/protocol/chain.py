"""The hash chain of a task: canonical JSON, the digest of recorded facts, and the head that covers all entries so far.

Coordinator and clients use this module for the same computations. It needs only the standard library, and
docs/protocol.md describes it for other languages.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

# The head before the first entry.
FIRST_HEAD = "0" * 64
# The chain that records which tasks, keys and tombstones a store has. Task ids are hexadecimal.
STORE_CHAIN = "store"


class BrokenChain(ValueError):
    """An entry of a chain is missing, out of order, or does not have its head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainEntry:
    """One entry: what was recorded (`kind`), of what (`subject`), the digest of the facts, and the head after it."""

    sequence: int
    kind: str
    subject: str
    content: str
    head: str


def canonical_json(value: Any) -> bytes:
    """The JSON text of a value that every implementation writes with the same bytes (RFC 8785).

    Keys are sorted, there is no white space, and numbers have their shortest form.

    >>> canonical_json({"b": 1e-05, "a": [5.0, True, None, 1e21]})
    b'{"a":[5,true,null,1e+21],"b":0.00001}'
    """
    return _written(value).encode()


def digest_of_facts(value: Any) -> str:
    """The SHA-256 of a value in canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def row_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a stored row as facts. Nulls are left out, so that a new nullable column changes no digest."""
    return {name: _finite(value) for name, value in row.items() if value is not None}


def next_head(previous: str, *, sequence: int, kind: str, subject: str, content: str) -> str:
    """The head after an entry: the SHA-256 of the canonical JSON list of these five values."""
    return digest_of_facts([previous, sequence, kind, subject, content])


def extended(previous: str, sequence: int, facts: Iterable[tuple[str, str, str]]) -> Iterator[ChainEntry]:
    """The entries that follow on an entry with this head and sequence, one for each (kind, subject, content)."""
    for kind, subject, content in facts:
        sequence += 1
        previous = next_head(previous, sequence=sequence, kind=kind, subject=subject, content=content)
        yield ChainEntry(sequence=sequence, kind=kind, subject=subject, content=content, head=previous)


def checked(entries: Iterable[ChainEntry]) -> Iterator[ChainEntry]:
    """The entries of a whole chain, each after its check.

    Raises:
        BrokenChain: at the first entry that is missing, out of order or does not have its head.
    """
    previous = FIRST_HEAD
    for sequence, entry in enumerate(entries, start=1):
        if entry.sequence != sequence:
            raise BrokenChain(f"entry {sequence} is missing: entry {entry.sequence} follows on entry {sequence - 1}")
        previous = next_head(previous, sequence=sequence, kind=entry.kind, subject=entry.subject, content=entry.content)
        if entry.head != previous:
            raise BrokenChain(f"entry {sequence} ({entry.kind}, {entry.subject}) does not have the recorded head")
        yield entry


def _finite(value: Any) -> Any:
    # JSON has no infinity and no NaN. A text never equals a number, so the digests differ.
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _written(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if kind is dict:
        members = [f"{name}{_written(value[key])}" for key, name in _member_names(value)]
        return f"{{{','.join(members)}}}"
    if kind is float:
        return _number(value)
    if value is None or kind is bool:
        return _CONSTANTS[value]
    if isinstance(value, str):
        return encode_basestring(str(value))
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Mapping):
        return _written(dict(value))
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    raise TypeError(f"{kind.__name__} has no JSON form")


def _member_names(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of an object in their order, each with its text."""
    # Messages of one kind have the same keys. A large object is rather a table with keys of its own.
    return _kept_names(tuple(value)) if len(value) <= _FEW_KEYS else _names(tuple(value))


def _names(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(key, f"{encode_basestring(key)}:") for key in sorted(keys, key=_utf16)]


_FEW_KEYS = 50
_kept_names = lru_cache(maxsize=256)(_names)
_CONSTANTS = {None: "null", True: "true", False: "false"}


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _number(value: float) -> str:
    """A number as ECMAScript writes it. Python finds the same shortest digits and places the exponent differently."""
    if not math.isfinite(value):
        raise ValueError("JSON has no infinity and no NaN")
    if value == 0:
        return "0"
    if value < 0:
        return f"-{_number(-value)}"
    digits, _, exponent = f"{value!r}".partition("e")
    whole, _, fraction = digits.partition(".")
    shown = (whole + fraction).lstrip("0")
    # The number is 0.shown times ten to the power of `point`.
    point = int(exponent or 0) + (len(whole) if whole != "0" else len(fraction.lstrip("0")) - len(fraction))
    shown = shown.rstrip("0")
    count = len(shown)
    if count <= point <= 21:
        return shown + "0" * (point - count)
    if 0 < point <= 21:
        return f"{shown[:point]}.{shown[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{shown}"
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{shown[0]}{'.' if count > 1 else ''}{shown[1:]}{power}"
