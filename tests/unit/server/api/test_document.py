"""The OpenAPI document: credentials, statuses, headers, ids, events, and examples that are valid."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qidpfl_server.api.document import examples as shown
from qidpfl_server.api.document.texts import EVENT_EXAMPLE, EVENT_KINDS
from qidpfl_shared.core.aggregation import ServerState, server_step
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode
from qidpfl_shared.protocol.evidence import ProfileReceipt, profile_digest
from qidpfl_shared.protocol.messages import (
    BudgetReceipt,
    EnrolAnswer,
    Event,
    Profile,
    RoundOffer,
    RoundResult,
    TaskState,
    UpdateReceipt,
)
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.signatures import SignedMessage, SigningKey
from qidpfl_shared.protocol.wire import decode, digest_of, encode
from support.openapi_document import document, operations
from test_surface import task_events

OPERATIONS = dict(operations())
TASK = "/v1/tasks/{task_id}"
PUBLIC = ("client", "admin", "viewer")


def test_the_document_names_the_version_of_the_protocol() -> None:
    assert document()["info"]["version"] == PROTOCOL_VERSION


def test_the_ids_of_operations_are_short_and_unique() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))
    assert all(len(one) <= 24 and one.isidentifier() and one == one.lower() for one in ids)
    assert {"enrol", "put_profile", "get_announcement", "put_budget", "put_update", "get_ledger"} <= set(ids)


@pytest.mark.parametrize(
    ("operation", "roles"),
    [
        (f"POST {TASK}/clients", ()),
        ("GET /healthz", ()),
        ("GET /readyz", ()),
        ("GET /v1/keys", ()),
        (f"POST {TASK}/clients/certificate", ("certificate",)),
        (f"GET {TASK}", ("client", "enrolment_code", "certificate", "admin", "viewer")),
        (f"PUT {TASK}/clients/me/profile", ("client",)),
        (f"PUT {TASK}/rounds/{{round_number}}/update", ("client",)),
        (f"PUT {TASK}/rounds/{{round_number}}/budget", ("client",)),
        (f"GET {TASK}/rounds/{{round_number}}", PUBLIC),
        (f"GET {TASK}/models/{{version}}", PUBLIC),
        (f"GET {TASK}/events", ("admin", "viewer")),
        ("POST /v1/tasks", ("admin",)),
    ],
)
def test_an_operation_names_the_credentials_that_it_takes(operation: str, roles: tuple[str, ...]) -> None:
    assert OPERATIONS[operation]["security"] == [{role: []} for role in roles]


def test_every_operation_names_only_known_credentials() -> None:
    known = document()["components"]["securitySchemes"]
    assert set(known) == {"client", "enrolment_code", "viewer", "admin", "certificate"}
    for operation in OPERATIONS.values():
        assert all(one.keys() <= known.keys() for one in operation["security"])
        # An operation that refuses unknown callers says which ones it knows.
        assert bool(operation["security"]) or "401" not in operation["responses"] or operation["operationId"] == "enrol"


def test_every_error_code_is_declared_by_an_operation() -> None:
    declared = {
        code
        for operation in OPERATIONS.values()
        for answer in operation["responses"].values()
        for code in answer.get("content", {}).get(PROBLEM_MEDIA_TYPE, {}).get("examples", {})
    }
    # No route raises it: a client that is not selected is not invited.
    assert declared == {code.value for code in ErrorCode} - {"not_selected"}


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_status_says_what_a_client_does(operation: str) -> None:
    for status, answer in OPERATIONS[operation]["responses"].items():
        if int(status) >= 400:
            examples = answer["content"][PROBLEM_MEDIA_TYPE]["examples"]
            lines = answer["description"].splitlines()
            assert [line.split("`")[1] for line in lines] == list(examples)
            assert all(re.fullmatch(r"- `\w+`: .+\. The client .+\.", line) for line in lines)
        else:
            assert answer["description"]
        assert ("Retry-After" in answer.get("headers", {})) == (status in ("429", "503", "507"))
    assert {"400", "405", "408", "429", "431", "500", "503"} <= OPERATIONS[operation]["responses"].keys()


def test_models_declare_their_headers() -> None:
    answers = OPERATIONS[f"GET {TASK}/models/{{version}}"]["responses"]
    assert set(answers["200"]["headers"]) == {"ETag", "Content-Digest"}
    assert set(answers["304"]["headers"]) == {"ETag"}


def test_the_mechanisms_have_a_discriminator() -> None:
    mechanism = document()["components"]["schemas"]["PrivacySpec"]["properties"]["mechanism"]
    assert mechanism["discriminator"]["propertyName"] == "name"
    assert len(mechanism["discriminator"]["mapping"]) == len(mechanism["oneOf"]) == 5
    for reference in mechanism["discriminator"]["mapping"].values():
        assert "name" in document()["components"]["schemas"][reference.rpartition("/")[2]]["required"]


def test_the_document_explains_every_event_and_its_payload() -> None:
    ends = {f"task.{state.value}" for state in TaskState if state.ended}
    assert set(EVENT_KINDS) == {*task_events(), *ends}
    text = OPERATIONS[f"GET {TASK}/events"]["responses"]["200"]["description"]
    assert all(f"| `{kind}` | " in text for kind in EVENT_KINDS)
    assert "Event" in document()["components"]["schemas"]
    (data,) = [line.removeprefix("data: ") for line in EVENT_EXAMPLE.splitlines() if line.startswith("data: ")]
    assert Event.model_validate_json(data).kind in EVENT_KINDS


# --- examples --------------------------------------------------------------------------------------------------------


def examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every example of the document, with the schema that it must fit."""
    for name, operation in OPERATIONS.items():
        bodies = [("body", operation.get("requestBody", {})), *operation["responses"].items()]
        for place, body in bodies:
            for media_type, content in body.get("content", {}).items():
                if media_type.endswith("json"):
                    yield from _of(f"{name} {place}", content, content["schema"])
        for parameter in operation.get("parameters", []):
            yield from _of(f"{name} {parameter['name']}", parameter, parameter["schema"])
    for name, schema in document()["components"]["schemas"].items():
        yield from _of(name, schema, schema)
        for field, inner in schema.get("properties", {}).items():
            yield from _of(f"{name}.{field}", inner, inner)


def _of(name: str, holder: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    given = holder.get("examples", [])
    values = [_shared(one)["value"] for one in given.values()] if isinstance(given, dict) else given
    for value in [*values, *([holder["example"]] if "example" in holder else []), *schema.get("examples", [])]:
        yield name, schema, value


def _shared(example: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = example
    if "$ref" in example:
        found = document()["components"]["examples"][example["$ref"].rpartition("/")[2]]
    return found


EXAMPLES = list(examples())


@pytest.mark.parametrize(("schema", "value"), [one[1:] for one in EXAMPLES], ids=[one[0] for one in EXAMPLES])
def test_every_example_fits_its_schema(schema: dict[str, Any], value: Any) -> None:
    whole = json.loads(json.dumps({"components": document()["components"], **schema}))
    jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)


def test_there_are_examples_of_all_that_a_client_sends_and_reads() -> None:
    named = {name for name, _, _ in EXAMPLES}
    for operation in ("PUT {}/clients/me/profile", "PUT {}/rounds/{{round_number}}/budget"):
        assert {f"{operation.format(TASK)} body", f"{operation.format(TASK)} 200"} <= named
    for operation in ("GET {}/rounds/current", "GET {}/clients/me/ledger", "GET {}/rounds/{{round_number}}"):
        assert f"{operation.format(TASK)} 200" in named


# What is signed, and the model that says which fields the signature covers.
SIGNED: list[tuple[type[SignedMessage], dict[str, Any]]] = [
    (EnrolAnswer, shown.ENROLLED),
    (ProfileReceipt, shown.PROFILED),
    (RoundOffer, shown.OFFER),
    (BudgetReceipt, shown.BUDGET_RECEIPT),
    (UpdateReceipt, shown.UPDATE_RECEIPT),
    (RoundResult, shown.ROUND),
]


@pytest.mark.parametrize(("model", "example"), SIGNED, ids=lambda value: getattr(value, "kind", ""))
def test_the_signature_of_every_example_is_right(model: type[SignedMessage], example: dict[str, Any]) -> None:
    # The first test of RFC 8032, section 7.1.
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(secret))
    facts = {name: value for name, value in example.items() if name not in ("signature", *model.unsigned)}
    assert key.public_key == shown.PUBLIC_KEY
    assert example["signature"] == key.sign(model.kind, facts).model_dump(mode="json")


def test_the_digests_of_the_examples_are_those_of_a_task() -> None:
    spec = preset("digits")
    assert shown.ENROLLED["spec_digest"] == spec.digest
    assert shown.PROFILED["profile_digest"] == profile_digest(Profile.model_validate(shown.PROFILE))
    first = ServerState.start(np.zeros(spec.dimension, dtype=np.float32))
    assert shown.OFFER["model_digest"] == shown.MODELS[0]["digest"] == digest_of(encode(first.parameters))
    entries: Any = shown.LEDGER["entries"]
    assert shown.UPDATE_RECEIPT["digest"] == entries[1]["digest"] == digest_of(shown.UPDATE)
    after = server_step(
        state=first,
        mean_update=decode(shown.UPDATE, dimension=spec.dimension).astype(np.float64),
        learning_rate=spec.aggregation.learning_rate,
        momentum=spec.aggregation.momentum,
    )
    assert shown.ROUND["model_digest"] == digest_of(encode(after.parameters))
    assert len({one["chain"]["sequence"] for _, one in SIGNED}) == len({one["chain"]["head"] for _, one in SIGNED}) == 6
