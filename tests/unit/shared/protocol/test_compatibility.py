"""The version of the protocol: the digest of a spec in any language, requirements, and fields of a later version."""

import hashlib
import json
from typing import Any

import pytest
from pydantic import ValidationError

from qidpfl_shared.protocol.chain import canonical_json
from qidpfl_shared.protocol.compatibility import (
    KNOWN_REQUIREMENTS,
    PROTOCOL_VERSION,
    refusal_of_spec,
    requirements,
    spec_digest,
)
from qidpfl_shared.protocol.messages import EnrolAnswer, RoundResult
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.signatures import ChainPosition, SigningKey, WrongSignature, verify_message
from qidpfl_shared.protocol.task_spec import TaskSpec

POSITION = ChainPosition(task_id="a1", sequence=3, head="0" * 64)


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_digest_of_a_task_is_that_of_the_served_spec_in_rfc_8785(name: str) -> None:
    spec = preset(name)
    served = json.loads(spec.model_dump_json())
    assert spec.digest == hashlib.sha256(canonical_json(served)).hexdigest() == spec_digest(served)
    assert served["protocol_version"] == PROTOCOL_VERSION


def test_the_digest_does_not_depend_on_how_a_language_writes_numbers() -> None:
    """A client in another language reads 3.0 as a number and may write it as 3."""
    served = json.loads(preset("digits").model_dump_json(), parse_float=lambda text: _shortest(float(text)))
    assert spec_digest(served) == preset("digits").digest


def _shortest(number: float) -> Any:
    return int(number) if number.is_integer() else number


def test_a_task_of_an_earlier_release_keeps_its_digest() -> None:
    spec = preset("digits")
    old = TaskSpec.model_validate({**spec.model_dump(mode="json"), "protocol_version": None, "requires": None})
    text = json.dumps(old.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    assert "protocol_version" not in text
    assert old.digest == hashlib.sha256(text.encode()).hexdigest() != spec.digest
    assert old.current.digest == spec.digest


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_spec_lists_what_it_requires(name: str) -> None:
    spec = preset(name)
    assert spec.requires == (f"mechanism.{spec.privacy.mechanism.name}", "answer.rho")
    assert set(spec.requires) <= KNOWN_REQUIREMENTS


def test_the_requirements_follow_the_overrides() -> None:
    unpaid = preset("digits", {"game": {"policy": "none"}, "privacy": {"noise": False}})
    assert unpaid.requires == requirements(mechanism="gradient_once", plays=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"requires": ["answer.rho"]}, "requires lacks mechanism.gradient_once"),
        ({"requires": ["mechanism.gradient_once", "answer.rho", "telepathy"]}, "does not know: telepathy"),
        ({"requires": None}, "belong together"),
        ({"protocol_version": None}, "belong together"),
        ({"protocol_version": "one"}, "pattern"),
    ],
)
def test_impossible_requirements_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TaskSpec.model_validate(preset("digits").model_dump(mode="json") | changes)


def test_an_unknown_requirement_is_refused_with_both_versions() -> None:
    spec = preset("digits").model_dump(mode="json") | {"protocol_version": "1.7"}
    assert refusal_of_spec(spec) is None
    refusal = refusal_of_spec(spec | {"requires": [*spec["requires"], "shuffling"]})
    assert refusal is not None
    assert all(word in refusal for word in ("shuffling", "protocol 1.7", f"protocol {PROTOCOL_VERSION}"))
    assert refusal_of_spec("not even an object") is None


def test_fields_of_a_later_version_are_read_over_and_stay_in_the_digest() -> None:
    later = preset("digits").model_dump(mode="json")
    later["later"] = {"some": [1, 2.5]}
    later["game"]["later"] = True
    later["layout"]["tensors"][1]["later"] = None
    spec = TaskSpec.read(json.dumps(later))
    assert spec.game.horizon == preset("digits").game.horizon
    assert spec.facts() == later
    assert spec.digest == spec_digest(later) != preset("digits").digest
    assert TaskSpec.read(json.dumps(spec.facts())).digest == spec.digest
    with pytest.raises(ValidationError):
        TaskSpec.model_validate(later)


def test_a_signature_covers_fields_of_a_later_version() -> None:
    key = SigningKey.new()
    sent = EnrolAnswer(client_id="c", token="t" * 16, ordinal=0, spec_digest="9f" * 32, chain=POSITION)
    body = sent.model_dump(mode="json") | {"later": 5}
    signature = key.sign("enrolment", {name: body[name] for name in body if name not in ("token", "signature")})
    read = EnrolAnswer.model_validate(body | {"signature": signature.model_dump()}, extra="allow")
    verify_message(key.public_key, read)
    with pytest.raises(WrongSignature):
        verify_message(key.public_key, EnrolAnswer.model_validate(read.facts() | {"later": 6}, extra="allow"))


def test_the_parts_of_a_message_keep_their_unknown_fields() -> None:
    part = {"client_id": "c", "ordinal": 0, "standing": "invited", "rho": 0.1, "declined": False, "delivered": True}
    part |= {"verdict": None, "accepted": True, "payment_micro": 5, "regret": None, "later": 1}
    body = {"round_number": 1, "attempt": 1, "state": "settled", "reward_micro": 5, "paid_micro": 5, "kept_micro": 0}
    body |= {"total": 0.1, "updates": 1, "model_version": 1, "clients": [part], "own": part}
    read = RoundResult.model_validate(body, extra="allow").facts()
    assert read["own"] == part and read["clients"] == [part]
