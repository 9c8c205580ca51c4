"""The error codes of the API, and the body that carries one (RFC 9457 problem+json)."""

from enum import StrEnum

from pydantic import Field

from .fields import MAX_TEXT, Message, Text, Tuple

PROBLEM_MEDIA_TYPE = "application/problem+json"


class ErrorCode(StrEnum):
    """Stable names of all errors of a request. Codes are added, never renamed."""

    status: int
    summary: str

    def __new__(cls, code: str, status: int, summary: str) -> "ErrorCode":
        member = str.__new__(cls, code)
        member._value_ = code
        member.status = status
        member.summary = summary
        return member

    @classmethod
    def named(cls, code: str) -> "ErrorCode | None":
        """Return the code of this name, or None."""
        return next((known for known in cls if known.value == code), None)

    @property
    def advice(self) -> str:
        """What a client does when it gets this error."""
        return _ADVICE.get(self.value) or _ADVICE_BY_STATUS[self.status]

    MALFORMED_REQUEST = "malformed_request", 400, "The request is not valid HTTP/1.1"
    MALFORMED_JSON = "malformed_json", 400, "The body is not valid JSON"
    UNAUTHENTICATED = "unauthenticated", 401, "The credentials are missing, wrong or revoked"
    FORBIDDEN = "forbidden", 403, "These credentials do not allow this"
    NOT_FOUND = "not_found", 404, "There is no such thing here"
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "This resource does not take that method"
    REQUEST_TIMEOUT = "request_timeout", 408, "The request did not arrive in time"

    TASK_FULL = "task_full", 409, "The task has no place left"
    TASK_NOT_ENROLLING = "task_not_enrolling", 409, "The task does not take new clients now"
    TASK_ENDED = "task_ended", 409, "The task has ended"
    TASK_NOT_ENDED = "task_not_ended", 409, "The task has not ended"
    TASK_PAUSED = "task_paused", 409, "The task is paused"
    TASK_EXISTS = "task_exists", 409, "Another task has this name"
    ALREADY_ENROLLED = "already_enrolled", 409, "The client of this enrolment key has already used its token"
    CODE_USED = "code_used", 409, "This single-use enrolment code has been used"
    TOKEN_REVOKED = "token_revoked", 409, "The token is revoked or has expired"
    ORDINAL_TAKEN = "ordinal_taken", 409, "Another client has this ordinal"
    MODEL_FROZEN = "model_frozen", 409, "Rounds have been announced with another first model"
    PROFILE_FROZEN = "profile_frozen", 409, "A different profile is already stored"
    PROFILE_MISSING = "profile_missing", 409, "Too few clients have stored their profile"
    NOT_SELECTED = "not_selected", 409, "The client is not among the selected"
    NOT_INVITED = "not_invited", 409, "The client is not invited to this round"
    BUDGET_DECLARED = "budget_declared", 409, "Another answer is already stored"
    BUDGET_MISSING = "budget_missing", 409, "A budget has to be declared first"
    UPDATE_EXISTS = "update_exists", 409, "A different update of this client is already stored"
    UPDATE_REPLAYED = "update_replayed", 409, "These bytes were already uploaded in another round or by another client"

    ROUND_CLOSED = "round_closed", 410, "The round is closed"
    LENGTH_REQUIRED = "length_required", 411, "The request needs a Content-Length"
    BODY_TOO_LARGE = "body_too_large", 413, "The body is larger than this resource takes"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "This resource does not take that media type or encoding"

    INVALID_REQUEST = "invalid_request", 422, "A field has an impossible value"
    UNKNOWN_PRESET = "unknown_preset", 422, "There is no preset of this name"
    RULES_NOT_LOADED = "rules_not_loaded", 422, "The coordinator was started without the rules that the task names"
    REWARD_RANGE_REQUIRED = "reward_range_required", 422, "This reward policy needs a finite reward range"
    REWARD_REQUIRED = "reward_required", 422, "Policy fixed needs its reward, and no other policy takes one"
    PAID_WITHOUT_NOISE = "paid_without_noise", 422, "A paying policy needs noise: budgets mean nothing without it"
    NOISE_WITHOUT_BUDGET = "noise_without_budget", 422, "Policy none declares no budgets, so there is no noise to size"
    SERVER_STEP_FIXED = "server_step_fixed", 422, "This mechanism uploads updates: server rate 1 and momentum 0"
    CONVEX_NETWORK_REQUIRED = "convex_network_required", 422, "This mechanism is proven for convex networks only"
    IMAGE_ROWS_REQUIRED = "image_rows_required", 422, "This post-processing needs a model whose rows are images"
    INCONSISTENT_SPEC = "inconsistent_spec", 422, "Two parts of the task contradict each other"
    HISTOGRAM_MISMATCH = "histogram_mismatch", 422, "The label counts do not fit the task or do not add up to the size"
    HISTOGRAM_REQUIRED = "histogram_required", 422, "The selection rule of this task needs the label counts"
    PRIVACY_VALUE_REQUIRED = "privacy_value_required", 422, "The market of this task needs the privacy value"
    OUT_OF_BOUNDS = "out_of_bounds", 422, "A value is outside the bounds of the task"
    DIGEST_REQUIRED = "digest_required", 422, "The upload needs a Content-Digest of type sha-256"
    DIGEST_MISMATCH = "digest_mismatch", 422, "The bytes do not have the digest that was announced"
    WRONG_LENGTH = "wrong_length", 422, "The vector does not have the length of the model"
    NOT_FINITE = "not_finite", 422, "The vector holds NaN or infinity"

    HEADER_TOO_LARGE = "header_too_large", 431, "The header of the request is too large"
    TOO_MANY_REQUESTS = "too_many_requests", 429, "Too many requests at once"
    INTERNAL_ERROR = "internal_error", 500, "The coordinator failed; nothing was acknowledged"
    STORE_BUSY = "store_busy", 503, "The store is busy"
    STORAGE_FULL = "storage_full", 507, "The coordinator's storage is full"


_WAIT = "sends the same request again after `Retry-After`, or after 1 s, 2 s, 4 s … with jitter"
_CORRECT = "corrects the request; the same request fails again"
_ADVICE_BY_STATUS = {
    400: _CORRECT,
    401: "stops; or enrols again with the same `enrolment_key` if its token was never accepted",
    403: "stops: another role or another task is needed",
    404: _CORRECT,
    405: "uses a method of the header `Allow`",
    408: _WAIT,
    409: "does not send the request again, and reads the state of the task",
    410: "waits for the next announcement; an update that was not acknowledged stays charged",
    411: "sends `Content-Length`",
    413: "sends less",
    415: "sends the media type of the operation, without compression",
    422: _CORRECT,
    429: _WAIT,
    431: "sends fewer or shorter headers",
    500: _WAIT,
    503: _WAIT,
    507: _WAIT,
}
_STOP = "stops: it has sent something else before, so its own records are wrong"
_ADVICE = {
    "already_enrolled": "uses the token that it has",
    "task_full": "asks the operator for another task",
    "task_not_enrolling": "asks the operator for another task",
    "task_ended": "reads its ledger and ends",
    "code_used": "asks the operator for another code",
    "ordinal_taken": "asks for another ordinal, or for none",
    "profile_frozen": _STOP,
    "budget_declared": "treats its new budget as free if it has declined or withdrawn in this round; else it stops, and"
    " the budget stays charged",
    "update_exists": _STOP,
    "update_replayed": _STOP,
    "profile_missing": "waits until enough clients have stored their profile",
    "not_selected": "waits for the end of the task",
    "not_invited": "waits for the next announcement",
    "budget_missing": "declares a budget, then sends the same bytes",
}


def one_line(text: str) -> str:
    """Make any text valid for a `Text` field: control characters become spaces, and long text is cut."""
    if text.isprintable():
        return text[:MAX_TEXT]
    return "".join(character if character.isprintable() else " " for character in text)[:MAX_TEXT]


class FieldProblem(Message):
    """One field that is wrong. The value is never repeated."""

    path: Text = Field(description="path of the field, for example /game/discount")
    message: Text


class Problem(Message):
    """The body of every error answer."""

    type: Text = Field(description="a URI reference that identifies the kind of problem", examples=["about:blank"])
    title: Text
    status: int = Field(ge=400, le=599)
    code: Text = Field(description="stable machine-readable code", examples=["round_closed"])
    detail: Text | None = None
    instance: Text | None = None
    errors: Tuple[FieldProblem] = ()

    @classmethod
    def of(cls, code: ErrorCode, detail: str | None = None, errors: tuple[FieldProblem, ...] = ()) -> "Problem":
        """Return the problem of this code, with its summary and status. Long text is cut, so reporting never fails."""
        return cls(
            type=f"urn:qidpfl:problem:{code.value}",
            title=code.summary,
            status=code.status,
            code=code.value,
            detail=None if detail is None else one_line(detail),
            errors=errors,
        )
