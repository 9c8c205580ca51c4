"""Error codes and the body that carries one."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, FieldProblem, Problem, one_line
from qidpfl_shared.protocol.fields import MAX_TEXT

# What foreign clients rely on: extended by every new code, never changed.
PUBLISHED = {
    "malformed_request": 400,
    "malformed_json": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "task_full": 409,
    "task_not_enrolling": 409,
    "task_ended": 409,
    "task_exists": 409,
    "task_not_ended": 409,
    "task_paused": 409,
    "already_enrolled": 409,
    "code_used": 409,
    "token_revoked": 409,
    "ordinal_taken": 409,
    "model_frozen": 409,
    "profile_frozen": 409,
    "profile_missing": 409,
    "not_selected": 409,
    "not_invited": 409,
    "budget_declared": 409,
    "budget_missing": 409,
    "update_exists": 409,
    "update_replayed": 409,
    "round_closed": 410,
    "length_required": 411,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_request": 422,
    "unknown_preset": 422,
    "rules_not_loaded": 422,
    "reward_range_required": 422,
    "reward_required": 422,
    "paid_without_noise": 422,
    "noise_without_budget": 422,
    "server_step_fixed": 422,
    "convex_network_required": 422,
    "image_rows_required": 422,
    "privacy_value_required": 422,
    "inconsistent_spec": 422,
    "histogram_mismatch": 422,
    "histogram_required": 422,
    "out_of_bounds": 422,
    "digest_required": 422,
    "digest_mismatch": 422,
    "wrong_length": 422,
    "not_finite": 422,
    "header_too_large": 431,
    "too_many_requests": 429,
    "internal_error": 500,
    "store_busy": 503,
    "storage_full": 507,
}
FIELD = FieldProblem(path="/game/discount", message="must be greater than 0")
# Any characters, also lone surrogates, repeated until some are beyond the largest text.
ANY_TEXT = st.builds(lambda text, times: text * times, st.text(st.characters(codec=None)), st.sampled_from([1, 1, 200]))


@pytest.mark.parametrize(("code", "status"), PUBLISHED.items())
def test_a_published_code_keeps_its_status(code: str, status: int) -> None:
    assert ErrorCode[code.upper()].status == status


def test_every_code_is_published() -> None:
    assert {code.value for code in ErrorCode} == set(PUBLISHED)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_is_named_like_its_member(code: ErrorCode) -> None:
    assert code.value == code.name.lower()


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_is_its_own_text(code: ErrorCode) -> None:
    assert json.dumps(code) == f'"{code.value}"'


@pytest.mark.parametrize("code", ErrorCode)
def test_a_known_code_is_found_by_its_name(code: ErrorCode) -> None:
    assert ErrorCode.named(str(code.value)) is code


@pytest.mark.parametrize("name", ["", "NOT_FOUND", "not_found ", "not_found\n", "404", "invented_later", "\ud800"])
def test_no_code_is_found_by_any_other_name(name: str) -> None:
    assert ErrorCode.named(name) is None


def test_no_two_codes_say_the_same() -> None:
    assert len({code.summary for code in ErrorCode}) == len(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_problem_carries_the_code_its_status_and_its_summary(code: ErrorCode) -> None:
    problem = Problem.of(code)
    assert (problem.code, problem.status, problem.title) == (code.value, code.status, code.summary)


def test_a_problem_carries_its_detail_and_the_fields_that_are_wrong() -> None:
    problem = Problem.of(ErrorCode.INVALID_REQUEST, "one field is wrong", (FIELD,))
    assert (problem.detail, problem.errors) == ("one field is wrong", (FIELD,))


@given(text=ANY_TEXT)
def test_text_from_anywhere_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable() and len(line) == min(len(text), MAX_TEXT)


@given(text=ANY_TEXT)
def test_one_line_stays_unchanged(text: str) -> None:
    assert one_line(one_line(text)) == one_line(text)


@pytest.mark.parametrize("text", ["", "round 3 closed at noon", "\u03c0 < 1 \U0001f600", "x" * MAX_TEXT])
def test_printable_text_is_kept(text: str) -> None:
    assert one_line(text) == text


@pytest.mark.parametrize("character", ["\x00", "\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u2028", "\ud800"], ids=ascii)
def test_a_character_that_is_not_printable_becomes_a_space(character: str) -> None:
    assert one_line(f"a{character}b") == "a b"


@given(detail=ANY_TEXT)
def test_reporting_never_fails_for_any_detail(detail: str) -> None:
    problem = Problem.of(ErrorCode.INTERNAL_ERROR, detail)
    assert Problem.model_validate_json(problem.model_dump_json()) == problem


def test_a_long_detail_is_cut() -> None:
    assert Problem.of(ErrorCode.INTERNAL_ERROR, "x" * 10**6).detail == "x" * MAX_TEXT


def test_a_problem_without_detail_has_none() -> None:
    assert Problem.of(ErrorCode.INTERNAL_ERROR).detail is None


def test_the_type_of_a_problem_is_a_uri_of_its_code() -> None:
    assert Problem.of(ErrorCode.ROUND_CLOSED).type == "urn:qidpfl:problem:round_closed"


def test_the_media_type_is_that_of_the_rfc() -> None:
    assert PROBLEM_MEDIA_TYPE == "application/problem+json"


@pytest.mark.parametrize("code", ErrorCode)
def test_a_problem_survives_json(code: ErrorCode) -> None:
    problem = Problem.of(code, "round 3 closed at noon", (FIELD,))
    assert Problem.model_validate_json(problem.model_dump_json()) == problem


def test_a_client_reads_a_code_that_it_does_not_know() -> None:
    body = json.loads(Problem.of(ErrorCode.NOT_FOUND).model_dump_json()) | {"code": "invented_later", "status": 418}
    assert Problem.model_validate(body).code == "invented_later"


def test_a_problem_says_which_fields_are_wrong_but_not_what_they_held() -> None:
    assert set(FieldProblem.model_fields) == {"path", "message"}


@pytest.mark.parametrize("field", Problem.model_fields)
def test_a_problem_is_frozen(field: str) -> None:
    problem = Problem.of(ErrorCode.NOT_FOUND)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(problem, field, getattr(problem, field))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"status": 399}, "greater_than_equal"),
        ({"status": 600}, "less_than_equal"),
        ({"status": True}, "int_type"),
        ({"status": math.nan}, "int_type"),
        ({"status": "404"}, "int_type"),
        ({"title": None}, "string_type"),
        ({"detail": "x" * 1001}, "string_too_long"),
        ({"detail": "two\nlines"}, "string_pattern_mismatch"),
        ({"title": "\x00"}, "string_pattern_mismatch"),
        ({"code": "not_found\n"}, "string_pattern_mismatch"),
        ({"errors": [{"path": "/rho\n", "message": "too large"}]}, "string_pattern_mismatch"),
        ({"errors": {"path": "/rho", "message": "too large"}}, "wrong_type"),
        ({"errors": [{"path": "/rho"}]}, "missing"),
        ({"errors": [{"path": "/rho", "message": "too large", "input": 3}]}, "extra_forbidden"),
        ({"traceback": "..."}, "extra_forbidden"),
    ],
)
def test_a_malformed_problem_is_refused(change: dict[str, Any], code: str) -> None:
    body = json.loads(Problem.of(ErrorCode.NOT_FOUND).model_dump_json()) | change
    with pytest.raises(ValidationError) as caught:
        Problem.model_validate(body)
    assert [error["type"] for error in caught.value.errors()] == [code]
