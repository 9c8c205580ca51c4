"""JSON that the protocol does not allow is one kind of error, which the routes answer with a code."""

import json

import pytest

from qidpfl_server.api.json import parse


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"a": 1, "a": 2}', b"[" * 10_000, b"9" * 5_000],
    ids=["unfinished", "not UTF-8", "byte order mark", "repeated key", "deep", "long integer"],
)
def test_a_text_that_is_not_allowed_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse(body)


def test_an_allowed_text_is_read() -> None:
    assert parse('{"name": "ρ", "values": [1, 2.5, null]}'.encode()) == {"name": "ρ", "values": [1, 2.5, None]}
