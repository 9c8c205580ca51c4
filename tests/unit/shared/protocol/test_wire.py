"""Vectors as bytes, and their digests."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.wire import (
    Vector32,
    WireError,
    content_digest,
    decode,
    digest_of,
    encode,
    parse_content_digest,
    squared_norm,
)
from support.protocol.refusals import code_of

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def float_vectors() -> st.SearchStrategy[Vector32]:
    return hnp.arrays(np.float32, st.integers(1, 20), elements=FINITE)


# --- bytes -----------------------------------------------------------------------------------------------------------


@given(vector=float_vectors())
def test_a_round_trip_keeps_every_bit(vector: Vector32) -> None:
    assert decode(encode(vector), dimension=vector.size).tobytes() == vector.tobytes()


@given(data=st.integers(1, 5).flatmap(lambda d: st.binary(min_size=4 * d, max_size=4 * d)))
def test_bytes_are_kept_exactly_or_refused_as_not_finite(data: bytes) -> None:
    try:
        vector = decode(data, dimension=len(data) // 4)
    except WireError as error:
        assert error.code is ErrorCode.NOT_FINITE
    else:
        assert encode(vector) == data


@pytest.mark.parametrize("value", [-0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38])
def test_signed_zeros_subnormals_and_the_largest_value_survive(value: float) -> None:
    vector = np.array([value], dtype=np.float32)
    assert decode(encode(vector), dimension=1).tobytes() == vector.tobytes()


def test_numbers_are_little_endian_float32() -> None:
    assert encode(np.array([1.0, -2.0])) == bytes.fromhex("0000803f 000000c0")


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(np.array([1.0, 2.0], dtype=np.float64), id="float64"),
        pytest.param(np.array([1.0, 2.0], dtype=">f4"), id="big-endian"),
        pytest.param(np.array([1.0, 2.0], dtype=np.float16), id="float16"),
        pytest.param(np.array([1.0, 9.0, 2.0, 9.0], dtype=np.float32)[::2], id="strided view"),
    ],
)
def test_any_memory_layout_of_a_vector_gives_the_same_bytes(vector: npt.NDArray[np.generic]) -> None:
    assert encode(vector) == bytes.fromhex("0000803f 00000040")


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(np.array([[1.0, 2.0]]), id="one row"),
        pytest.param(np.array([[1.0], [2.0]]), id="one column"),
        pytest.param(np.array(1.0), id="scalar"),
        pytest.param(np.array([1, 2]), id="whole numbers"),
        pytest.param(np.array([True, False]), id="truth values"),
        pytest.param(np.array([1.0 + 1.0j]), id="complex"),
        pytest.param(np.array(["1.0"]), id="text"),
        pytest.param(np.array([1.0], dtype=object), id="objects"),
    ],
)
def test_only_a_flat_vector_of_floats_is_sent(vector: npt.NDArray[np.generic]) -> None:
    assert code_of(lambda: encode(vector)) is ErrorCode.WRONG_LENGTH


def test_a_float64_is_rounded_to_the_nearest_float32() -> None:
    assert encode(np.array([0.1])) == np.float32(0.1).tobytes()


def test_a_float64_too_small_for_float32_becomes_zero() -> None:
    assert encode(np.array([1e-60])) == bytes(4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.5e38, -1e300])
def test_values_that_float32_cannot_hold_are_not_sent(value: float) -> None:
    assert code_of(lambda: encode(np.array([0.0, value]))) is ErrorCode.NOT_FINITE


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param("0000c07f", id="quiet NaN"),
        pytest.param("0100807f", id="signalling NaN"),
        pytest.param("ffffffff", id="negative NaN with payload"),
        pytest.param("0000807f", id="infinity"),
        pytest.param("000080ff", id="minus infinity"),
    ],
)
def test_received_values_that_are_not_finite_are_refused(bits: str) -> None:
    assert code_of(lambda: decode(bytes(4) + bytes.fromhex(bits), dimension=2)) is ErrorCode.NOT_FINITE


def test_the_refusal_names_the_first_element_that_is_not_finite() -> None:
    with pytest.raises(WireError, match="element 2 "):
        encode(np.array([0.0, 1.0, math.nan, math.inf]))


@pytest.mark.parametrize("length", [0, 4, 7, 9, 12])
def test_any_other_number_of_bytes_is_refused(length: int) -> None:
    assert code_of(lambda: decode(bytes(length), dimension=2)) is ErrorCode.WRONG_LENGTH


@pytest.mark.parametrize("container", [bytes, bytearray, memoryview])
def test_every_kind_of_byte_buffer_is_read(container: Callable[[bytes], bytes | bytearray | memoryview]) -> None:
    data = container(encode(np.array([1.0, 2.0])))
    assert decode(data, dimension=2).tolist() == [1.0, 2.0]


def test_a_buffer_that_is_not_aligned_is_read() -> None:
    shifted = memoryview(b"x" + encode(np.array([1.0, 2.0])))[1:]
    assert decode(shifted, dimension=2).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(np.array([1.0, 2.0], dtype="<f4").data, id="of float32"),
        pytest.param(np.array([[1.0, 2.0]], dtype="<f4").data, id="of a matrix"),
        pytest.param(memoryview(bytes.fromhex("0000803f 00000040")).cast("q"), id="of one long"),
        pytest.param(memoryview(bytes.fromhex("0000803f 00000040")).cast("h"), id="of four shorts"),
    ],
)
def test_a_view_counts_by_its_bytes(view: memoryview) -> None:
    assert decode(view, dimension=2).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(np.zeros(8, dtype="<f4").data, id="eight elements of four bytes"),
        pytest.param(np.zeros((8, 0), dtype="<f4").data, id="eight rows of nothing"),
        pytest.param(np.zeros(2, dtype="<f8").data, id="two elements of eight bytes"),
        pytest.param(np.zeros(2, dtype="<f2").data, id="two elements of two bytes"),
    ],
)
def test_the_elements_of_a_view_do_not_count(view: memoryview) -> None:
    assert code_of(lambda: decode(view, dimension=2)) is ErrorCode.WRONG_LENGTH


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(bytes(4), id="bytes"),
        pytest.param(bytearray(4), id="bytearray"),
        pytest.param(memoryview(bytearray(4)), id="writable view"),
        pytest.param(np.zeros(1, dtype="<f4").data, id="view of an array"),
        pytest.param(memoryview(bytearray(5))[1:], id="view that is not aligned"),
    ],
)
def test_a_vector_read_from_bytes_cannot_be_changed(data: bytes | bytearray | memoryview) -> None:
    vector = decode(data, dimension=1)
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 1.0


def test_the_norm_of_huge_finite_values_is_finite() -> None:
    assert squared_norm(np.full(2, 3e38, dtype=np.float32)) == pytest.approx(1.8e77)


# --- digests ---------------------------------------------------------------------------------------------------------


def test_the_digest_is_the_sha256_in_hexadecimal() -> None:
    assert digest_of(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_content_digest_is_that_of_the_rfcs_example() -> None:
    expected = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    assert content_digest(b'{"hello": "world"}\n') == expected


@given(data=st.binary(max_size=64))
def test_a_content_digest_is_read_back(data: bytes) -> None:
    assert parse_content_digest(content_digest(data)) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("md5=:AAAAAAAAAAAAAAAAAAAAAA==:, {}", id="after another algorithm"),
        pytest.param("{},sha-512=:AAAA:", id="before another algorithm"),
        pytest.param("  {}  ", id="in blanks"),
        pytest.param("{};created=1618884473", id="before a parameter"),
        pytest.param('{} ; a ; b="x=:AAAA:"', id="before two parameters"),
        pytest.param("{};a=1, sha-512=:AAAA:;b=2", id="parameters everywhere"),
        pytest.param("SHA-256=:AAAA:, {}, Sha-256=:AAAA:", id="between keys in capitals"),
    ],
)
def test_what_stands_beside_the_sha256_is_ignored(form: str) -> None:
    assert parse_content_digest(form.format(content_digest(b"abc"))) == digest_of(b"abc")


@pytest.mark.parametrize("key", ["SHA-256", "Sha-256", "sHA-256"])
def test_the_name_of_the_algorithm_is_in_lower_case(key: str) -> None:
    header = content_digest(b"abc").replace("sha-256", key)
    assert code_of(lambda: parse_content_digest(header)) is ErrorCode.DIGEST_REQUIRED


@pytest.mark.parametrize("earlier", [content_digest(b"old"), "sha-256=:AAAA:", "sha-256=;a", "sha-256"])
def test_the_last_of_equal_keys_counts(earlier: str) -> None:
    assert parse_content_digest(f"{earlier}, {content_digest(b'abc')}") == digest_of(b"abc")


@pytest.mark.parametrize("last", ["sha-256=:AAAA:", "sha-256=;a", "sha-256"])
def test_a_whole_digest_before_a_broken_one_does_not_count(last: str) -> None:
    header = f"{content_digest(b'abc')}, {last}"
    assert code_of(lambda: parse_content_digest(header)) is ErrorCode.DIGEST_REQUIRED


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("", id="empty"),
        pytest.param("sha-256", id="no value"),
        pytest.param("sha-256=", id="empty value"),
        pytest.param("sha-256=:", id="one colon"),
        pytest.param("sha-256=::", id="empty digest"),
        pytest.param("sha-512=:AAAA:", id="another algorithm only"),
        pytest.param("sha-256=" + "A" * 43 + "=", id="no colons"),
        pytest.param("sha-256=:" + "A" * 43 + "=", id="no closing colon"),
        pytest.param("sha-256=" + "A" * 43 + "=:", id="no opening colon"),
        pytest.param("sha-256=:" + "A" * 42 + "==:", id="31 bytes"),
        pytest.param("sha-256=:" + "A" * 44 + ":", id="33 bytes"),
        pytest.param("sha-256=:" + "0" * 64 + ":", id="hexadecimal"),
        pytest.param("sha-256=:" + "A" * 43 + ":", id="no padding"),
        pytest.param("sha-256=:" + "-" * 43 + "=:", id="not the base64 alphabet"),
        pytest.param("sha-256=:!" + "A" * 43 + "=:", id="a foreign character before a whole digest"),
        pytest.param("sha-256=:" + "\u00e9" * 43 + "=:", id="not ASCII"),
        pytest.param("sha-256;a=:" + "A" * 43 + "=:", id="as a parameter of nothing"),
        pytest.param("sha-512=:AAAA:;sha-256=:" + "A" * 43 + "=:", id="as a parameter of another algorithm"),
    ],
)
def test_a_header_without_a_whole_sha256_is_refused(header: str) -> None:
    assert code_of(lambda: parse_content_digest(header)) is ErrorCode.DIGEST_REQUIRED


@given(header=st.text(max_size=60) | st.text(max_size=60).map("sha-256=:{}:".format))
def test_no_header_causes_any_other_error(header: str) -> None:
    assert code_of(lambda: parse_content_digest(header)) is ErrorCode.DIGEST_REQUIRED
