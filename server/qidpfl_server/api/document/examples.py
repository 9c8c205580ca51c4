"""Examples of requests and answers: round 1 of the worked example in docs/contract.md, seen by its second client.

A test validates each against its schema, computes the amounts with the functions of the core, and checks all digests
and signatures. The task is preset `digits` with model 0 of zeros; every update is 0.0625 in each of its 650 numbers.
The key is that of the first test of RFC 8032. Only the heads of the chain are invented.
"""

import base64
import hashlib
import struct
from typing import Any

TASK_ID, CLIENT_ID = "5f1d7a84db00d2fce00b31a7", "8c0f52a6f1d34b7e9a21c3d4"
UPDATE = struct.pack("<650f", *[0.0625] * 650)
# After the first step, of learning rate 3.
NEXT_MODEL = struct.pack("<650f", *[-0.1875] * 650)
PUBLIC_KEY = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _signed(sequence: int, signature: str) -> dict[str, Any]:
    """The place of a fact in the chain, and the signature of its message."""
    return {
        "chain": {"task_id": TASK_ID, "sequence": sequence, "head": _digest(b"head %d" % sequence)},
        "signature": {"key_id": _digest(base64.b64decode(PUBLIC_KEY))[:16], "value": signature},
    }


_SPEC_DIGEST = "3deb6ea293baaf156ee1a9a6bc5ab0f9dac8e123d4c88c9b66a216fdc1cc076f"
_PROFILE_DIGEST = "eb4e808710625194250cad559da08f7484c5afe6d8505428c3fe2a1dcd1a1460"
_FIRST_DIGEST, _UPDATE_DIGEST, _NEXT_DIGEST = _digest(bytes(2600)), _digest(UPDATE), _digest(NEXT_MODEL)
_OPENED, _DECLARED, _RECEIVED = "2026-01-01T00:00:00Z", "2026-01-01T00:00:04Z", "2026-01-01T00:00:09Z"

ENROL = {"enrolment_code": f"{TASK_ID}.of-the-operator", "enrolment_key": "random-text-of-the-client"}
ENROLLED = {
    "client_id": CLIENT_ID,
    "token": "shown-only-once-here",
    "ordinal": 1,
    "spec_digest": _SPEC_DIGEST,
    "public_key": PUBLIC_KEY,
    **_signed(12, "eKJ+fGFvDZYftdDUshge/2nbtodu6Sj7pNf/jAndDr+9nRGtNRTpQTQCTwf+5ebltv4DYixRT5GVubr3ci49CA=="),
}
NEW_TOKEN = {"token": "shown-only-once-here"}
PROFILE = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1, "lifetime_rho": 2.0}
PROFILED = {
    "client_id": CLIENT_ID,
    "profile_digest": _PROFILE_DIGEST,
    **_signed(15, "0fKlFuPK6hh8+MTmpirZKPasInAbOihPhIkyA3IVCaUJiAhtutfvR0YMIfAZxYOzDxWgJUcwsuqNHfg3LLjnDQ=="),
}
VERDICT = {
    "selected": True,
    "label_distance": 0.0,
    "distance_threshold": 0.75,
    "filled_up": False,
    "profiles": 3,
    "selected_clients": 3,
}
OFFER = {
    "round_number": 1,
    "attempt": 1,
    "reward_micro": 15_000_000,
    "total": 0.3333333333333333,
    "standing": "invited",
    "model_version": 0,
    "model_digest": _FIRST_DIGEST,
    "mechanism": "gradient_once",
    "clip_norm": 1.0,
    "dimension": 650,
    "rho_max": 0.1388888888888889,
    "noise": True,
    "declare_by": "2026-01-01T00:00:30Z",
    "deliver_by": "2026-01-01T00:02:30Z",
    "declare_in_s": 29.5,
    "deliver_in_s": 149.5,
    **_signed(21, "kHm1V6OArUB0IXhQ5f6Ki7THY6BPYHeYQ7KCGecEPY48LfskA/TJz5i4fOdOpLpasuFdtxxutsnaMbbXjAIgCA=="),
}
ANNOUNCEMENTS = {
    "round": {"summary": "an open round", "value": {"task_state": "training", "round": OFFER}},
    "enrolling": {"summary": "no round yet: ask again", "value": {"task_state": "enrolling"}},
    "ended": {"summary": "the task is over", "value": {"task_state": "finished", "reason": "horizon_reached"}},
}
ANSWERS: dict[str, Any] = {
    "declare": {"summary": "sell this budget", "value": {"rho": 0.1111111111111111}},
    "decline": {"summary": "do not take part, or withdraw", "value": {"decline": True, "reason": "owner_limit"}},
    "join": {"summary": "take part in a task without a game", "value": {"join": True}},
}
BUDGET_RECEIPT = {
    "round_number": 1,
    "client_id": CLIENT_ID,
    "state": "declared",
    "rho": 0.1111111111111111,
    "recorded_at": _DECLARED,
    **_signed(23, "hH87j/Z0X7OLQQ1fMqnDVAWc8e+jJRWGAyK++1uokgAJyzr7ShvH6WBSruzcCtoKlcZJJiSojHgvZhvcSaR/AA=="),
}
UPDATE_RECEIPT = {
    "round_number": 1,
    "client_id": CLIENT_ID,
    "digest": _UPDATE_DIGEST,
    "byte_length": 2600,
    "received_at": _RECEIVED,
    **_signed(26, "CA6YROwN7BJGo6bkloWl1ejd49PmkFp9DulUDaP1vCppKbF/qiuGEhASFe1/THtpiK3opsrhstSBFhLXeNTSCA=="),
}
_OWN = {
    "client_id": CLIENT_ID,
    "ordinal": 1,
    "standing": "invited",
    "rho": 0.1111111111111111,
    "declined": False,
    "delivered": True,
    "verdict": "consistent",
    "accepted": True,
    "payment_micro": 5_000_000,
    "regret": 0.0,
}
ROUND = {
    "round_number": 1,
    "attempt": 1,
    "state": "settled",
    "reward_micro": 15_000_000,
    "paid_micro": 15_000_000,
    "kept_micro": 0,
    "total": 0.3333333333333333,
    "declared_total": 0.3333333333333333,
    "updates": 3,
    "model_version": 1,
    "model_digest": _NEXT_DIGEST,
    "accuracy": 0.41,
    "loss": 1.9,
    "timing": {"opened_at": _OPENED, "settled_at": _RECEIVED, "settlement_s": 0.02, "evaluation_s": 0.01},
    "own": _OWN,
    **_signed(31, "FV/zVB+lCmgVJExzj418SANSSzglvzuJB/K/0speEoXdo0jcpCqZK4rFV5jM60ngF0DMgoyf4ElrWFFui9vMBQ=="),
}
LEDGER = {
    "client_id": CLIENT_ID,
    "entries": [
        {"release": "histogram", "mechanism": "gaussian histogram", "state": "spent", "rho": 0.1, "proven_rho": 0.1},
        {
            "release": "round/1",
            "mechanism": "gradient_once",
            "state": "spent",
            "rho": 0.1111111111111111,
            "proven_rho": 0.1111111111111111,
            "digest": _UPDATE_DIGEST,
            "payment_micro": 5_000_000,
        },
    ],
    "spent_rho": 0.2111111111111111,
    "epsilon": 2.9001299899488293,
    "delta": 1e-05,
    "earned_micro": 5_000_000,
}
MODELS = [{"version": 0, "digest": _FIRST_DIGEST, "dimension": 650, "byte_length": 2600}]
TOKEN_REQUEST = {"name": "dashboard", "role": "viewer", "task_id": TASK_ID, "valid_s": 2_592_000}
