"""Canonical JSON and the links of a chain: each test catches a chain that another implementation would not verify."""

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_shared.protocol.chain import (
    FIRST_HEAD,
    BrokenChain,
    ChainEntry,
    canonical_json,
    checked,
    digest_of_facts,
    extended,
    next_head,
    row_facts,
)

# The number samples of RFC 8785, appendix B.
NUMBERS = {
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
    0x4340000000000000: "9007199254740992",
    0x4430000000000000: "295147905179352830000",
    0x44B52D02C7E14AF5: "9.999999999999997e+22",
    0x44B52D02C7E14AF6: "1e+23",
    0x444B1AE4D6E2EF4E: "999999999999999700000",
    0x444B1AE4D6E2EF50: "1e+21",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x41B3DE4355555555: "333333333.3333333",
    0xBECBF647612F3696: "-0.0000033333333333333333",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items(), ids=NUMBERS.values())
def test_numbers_are_written_as_rfc_8785_says(bits: int, text: str) -> None:
    import struct

    (value,) = struct.unpack(">d", bits.to_bytes(8))
    assert canonical_json(value).decode() == text


def test_keys_are_sorted_and_texts_are_escaped_as_rfc_8785_says() -> None:
    value = {
        "€": "Euro",
        "\r": "return",
        "1": "one",
        "\U0001f600": "smiley",
        "ö": "o",
        "b": [56, {"d": True, "c": None}],
    }
    assert canonical_json(value).decode() == (
        '{"\\r":"return","1":"one","b":[56,{"c":null,"d":true}],"ö":"o","€":"Euro","\U0001f600":"smiley"}'
    )
    assert canonical_json('\x00\x1f"\\/\x7f').decode() == '"\\u0000\\u001f\\"\\\\/\x7f"'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_its_value(value: float) -> None:
    assert float(json.loads(canonical_json(value))) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical_json({"a": value})


def test_a_null_column_changes_no_digest_and_an_infinite_one_does() -> None:
    """A migration that adds a nullable column must not break the chains of older rows."""
    old, new = {"a": 1, "rho": 0.5}, {"a": 1, "rho": 0.5, "added_later": None}
    assert digest_of_facts(row_facts(old)) == digest_of_facts(row_facts(new))
    assert row_facts({"rho": math.inf}) == {"rho": "inf"}


def test_a_head_is_the_digest_of_five_values() -> None:
    """docs/protocol.md says so: other languages compute it like this."""
    text = '["' + "0" * 64 + '",1,"update","update/1/abc","' + "ab" * 32 + '"]'
    head = next_head(FIRST_HEAD, sequence=1, kind="update", subject="update/1/abc", content="ab" * 32)
    assert head == hashlib.sha256(text.encode()).hexdigest()


def chain(length: int = 5) -> list[ChainEntry]:
    return list(extended(FIRST_HEAD, 0, [("update", f"update/1/{n}", digest_of_facts(n)) for n in range(length)]))


def test_a_whole_chain_is_sound_and_goes_on() -> None:
    entries = chain()
    assert list(checked(entries)) == entries
    more = list(extended(entries[-1].head, 5, [("end", "task", "00" * 32)]))
    assert list(checked([*entries, *more]))[-1].sequence == 6


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("part", ["sequence", "kind", "subject", "content", "head"])
def test_a_changed_entry_breaks_the_chain(place: int, part: str) -> None:
    from dataclasses import replace

    entries = chain()
    changed = {"sequence": 9, "kind": "other", "subject": "update/2/0", "content": "11" * 32, "head": "22" * 32}[part]
    entries[place] = replace(entries[place], **{part: changed})  # type: ignore[arg-type]
    with pytest.raises(BrokenChain):
        list(checked(entries))


@pytest.mark.parametrize("place", range(4))
def test_a_missing_or_swapped_entry_breaks_the_chain(place: int) -> None:
    missing, swapped = chain(), chain()
    del missing[place]
    swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    for entries in (missing, swapped):
        with pytest.raises(BrokenChain):
            list(checked(entries))
