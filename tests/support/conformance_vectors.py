"""The golden vectors of docs/conformance: inputs, and what the core and the protocol compute from them."""

import base64
import hashlib
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.journal.entries import SeenOffer
from qidpfl_client.journal.receipts import KeptReceipt, contradicts
from qidpfl_client.owner import Owner
from qidpfl_client.participant.bidding import Bid, decide
from qidpfl_client.participant.verification import check_offer
from qidpfl_shared.core.aggregation import ServerState, server_step
from qidpfl_shared.core.equilibrium import best_response, equilibrium
from qidpfl_shared.core.markets.design import MarketKind, Terms
from qidpfl_shared.core.markets.menu import MenuPrior
from qidpfl_shared.core.money import from_micro, split_reward
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.privacy.histogram import clean_histogram, histogram_noise_std
from qidpfl_shared.core.privacy.mechanisms import NoisyEpochsMechanism, batch_sizes
from qidpfl_shared.core.selection import given_reference, label_distances
from qidpfl_shared.protocol.chain import FIRST_HEAD, canonical_json, digest_of_facts, extended
from qidpfl_shared.protocol.compatibility import spec_digest
from qidpfl_shared.protocol.evidence import profile_digest
from qidpfl_shared.protocol.mechanism_specs import (
    BoltOn,
    GradientOnce,
    MechanismSpec,
    NoisyEpochs,
    PaperLiteral,
    UpdateClip,
)
from qidpfl_shared.protocol.messages import EnrolAnswer, Profile, RoundOffer
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.signatures import KeyList, MessageSignature, SigningKey, WrongSignature, successors
from qidpfl_shared.protocol.wire import content_digest, digest_of, encode

Case = dict[str, Any]
_LOCAL: dict[str, Any] = {"learning_rate": 0.1, "epochs": 2, "batch_size": 55}
_MECHANISMS: list[MechanismSpec] = [
    GradientOnce(clip_norm=1.0),
    GradientOnce(clip_norm=0.5),
    NoisyEpochs(clip_norm=1.0, **_LOCAL),
    NoisyEpochs(clip_norm=2.0, learning_rate=0.05, epochs=3, batch_size=32),
    UpdateClip(clip_norm=1.0, **_LOCAL),
    BoltOn(feature_norm=1.0, **_LOCAL),
    BoltOn(feature_norm=2.0, learning_rate=0.1, epochs=1, batch_size=500),
    PaperLiteral(clip_norm=1.0, **_LOCAL),
]


def _case(given: Case, expected: Case) -> Case:
    return {"given": given, "expected": expected}


def label_distance() -> list[Case]:
    """Label counts and weights of the reference; the label distance, and whether it is within the threshold."""
    uniform, skewed = [1.0] * 10, [3.0, 1.0, 1.0, 0.0]
    histograms: list[tuple[list[int], list[float], float]] = [
        ([11] * 10, uniform, 0.75),
        ([15, 0, 10, 13, 11, 14, 9, 12, 16, 10], uniform, 0.75),
        ([55, 55, 0, 0, 0, 0, 0, 0, 0, 0], uniform, 0.75),
        ([0, 0, 0, 1], skewed, 2.0),
        ([30, 10, 10, 0], skewed, 0.0),
    ]
    found = []
    for counts, weights, threshold in histograms:
        (distance,) = label_distances(histograms=[counts], reference=given_reference(weights=weights))
        given = {"label_counts": counts, "reference_weights": weights, "distance_threshold": threshold}
        found.append(_case(given, {"label_distance": float(distance), "within": bool(distance <= threshold)}))
    return found


def best_answer() -> list[Case]:
    """An announcement, the task and the owner's limits; the best budget, null for a decline."""
    total = equilibrium(reward=15.0, privacy_values=(0.9, 1.0, 1.1), privacy_weight=30.0).total
    usual: Case = {"reward_micro": 15_000_000, "total": total, "rho_max": 1.0, "privacy_weight": 30.0}
    usual |= {"privacy_value": 1.0, "rho_min": 1e-6, "rho_cap": None, "lifetime_rho": None, "spent_rho": 0.0}
    changes: list[Case] = [
        *({"privacy_value": value} for value in (0.9, 1.0, 1.1)),
        {"rho_max": 0.05},
        {"rho_cap": 0.04},
        {"lifetime_rho": 0.2, "spent_rho": 0.1},
        {"lifetime_rho": 0.2, "spent_rho": 0.2},
        {"privacy_value": 1.6},
        {"rho_min": 0.12},
        {"reward_micro": 30_000_000, "total": 0.5, "privacy_value": 0.7},
    ]
    return [_case(given, {"rho": _best(given)}) for given in (usual | change for change in changes)]


def markets() -> list[Case]:
    """The terms of an auction or a menu, the task and the privacy value; the answer, its payment, or a refusal."""
    bounds = {"privacy_value_min": 0.9, "privacy_value_max": 1.2, "privacy_weight": 30.0, "privacy_value": 1.0}
    auction: Case = {"market": "auction", "prior": None, "reward_micro": 9_999_999, "rho_max": 0.1, "base_rho": None}
    auction |= {"total": 9.999999 / (30.0 * 1.04), **bounds}
    menu: Case = {"market": "menu", "prior": None, "reward_micro": 10_000_000, "rho_max": 0.11, "base_rho": 0.1}
    menu |= {"total": 0.24, **bounds}
    uniform: Case = menu | {"prior": "uniform", "total": 0.22, "rho_max": 0.12}
    changes: list[Case] = [
        auction,
        auction | {"rho_max": auction["total"] / 3},
        auction | {"privacy_value": 1.04},
        auction | {"privacy_value": 1.05},
        auction | {"total": 0.25},
        *(menu | {"privacy_value": value} for value in (0.9, 1.0, 1.1, 1.2)),
        menu | {"rho_max": 0.2},
        menu | {"total": 0.3},
        *(uniform | {"privacy_value": value} for value in (0.95, 1.0, 1.2)),
    ]
    return [_case(given, _sale(given)) for given in changes]


def _sale(given: Case) -> Case:
    rules = preset("digits").round_rules()
    design = replace(
        rules,
        market=MarketKind(given["market"]),
        prior=given["prior"] and MenuPrior(given["prior"]),
        privacy_weight=given["privacy_weight"],
        value_min=given["privacy_value_min"],
        value_max=given["privacy_value_max"],
    ).design
    terms = Terms(
        reward_micro=given["reward_micro"], total=given["total"], limit=given["rho_max"], base=given["base_rho"]
    )
    if design.refusal(terms, privacy_value=given["privacy_value"]) is not None:
        return {"refused": True}
    rho = design.answer(terms, privacy_value=given["privacy_value"], cap=math.inf).rho
    return {"refused": False, "rho": rho, "payment_micro": design.payment(terms, rho)}


def _best(given: Case) -> float | None:
    left = math.inf if given["lifetime_rho"] is None else given["lifetime_rho"] - given["spent_rho"]
    rho = best_response(
        reward=from_micro(given["reward_micro"]),
        total=given["total"],
        privacy_value=given["privacy_value"],
        privacy_weight=given["privacy_weight"],
        cap=min(given["rho_max"], given["rho_cap"] or math.inf, left),
    )
    return rho if rho >= given["rho_min"] else None


def noise_std() -> list[Case]:
    """A mechanism, a budget and a number of records; the sensitivity, and the noise that is added."""
    found = []
    for spec in _MECHANISMS:
        mechanism = spec.build()
        for size, rho in ((110, 1 / 9), (3000, 0.02), (20, 1.0)):
            expected: Case = {"sensitivity": mechanism.sensitivity(size=size)}
            if isinstance(mechanism, NoisyEpochsMechanism) and isinstance(spec, NoisyEpochs):
                batches = batch_sizes(size=size, batch_size=spec.batch_size)
                expected["batches"] = list(batches)
                expected["step_noise_std"] = [mechanism.step_noise_std(rho=rho, batch=batch) for batch in batches]
            else:
                expected["noise_std"] = mechanism.noise_std(rho=rho, size=size)
            expected["proven_rho"] = mechanism.proven_rho(rho=rho, size=size)
            found.append(_case({"mechanism": spec.model_dump(mode="json"), "size": size, "rho": rho}, expected))
    return found


def histogram() -> list[Case]:
    """Noisy label counts and the number of records; the clean counts. Also the noise of a budget."""
    noisy = [
        ([14.2, -3.1, 9.6, 12.7, 10.9, 13.3, 8.4, 11.8, 15.5, 10.2], 110),
        ([-3.0, 7.0, 8.0], 10),
        ([100.25, -50.5, 3.75, 0.5], 60),
        ([0.4, 0.4, 0.4], 1),
        ([-5.0, -7.0], 3),
    ]
    clean = [
        _case({"noisy_counts": counts, "size": size}, {"label_counts": list(clean_histogram(noisy=counts, size=size))})
        for counts, size in noisy
    ]
    return clean + [_case({"rho": rho}, {"noise_std": histogram_noise_std(rho=rho)}) for rho in (0.02, 0.1, 1.0)]


def clipping() -> list[Case]:
    """The gradients of all records, and the clip norm; the mean of the clipped gradients."""
    sets: list[tuple[list[list[float]], float]] = [
        ([[3.0, 4.0]], 1.0),
        ([[3.0, 4.0], [0.3, -0.4], [-6.0, 8.0]], 1.0),
        ([[0.0, 0.0], [0.0, 2.0]], 0.5),
    ]
    found = []
    for gradients, norm in sets:
        rows = np.array(gradients)
        lengths = np.linalg.norm(rows, axis=1)
        scales = np.minimum(1.0, norm / np.where(lengths > 0, lengths, 1.0))
        mean = (rows * scales[:, None]).mean(axis=0)
        found.append(_case({"gradients": gradients, "clip_norm": norm}, {"mean": mean.tolist()}))
    return found


def gradient() -> list[Case]:
    """Softmax regression with two records; the gradient of each, and the mean of the clipped ones before any noise."""
    layout = {"tensors": [{"name": "weight", "shape": [3, 2]}, {"name": "bias", "shape": [3]}]}
    records: list[Case] = [{"features": [1.0, 0.5], "label": 0}, {"features": [0.0, 0.25], "label": 2}]
    models = [[0.0] * 9, [0.5, -0.25, 1.0, 0.75, -1.0, 0.125, 0.25, -0.5, 0.0]]
    found = []
    for model in models:
        rows = np.array([_softmax_gradient(np.array(model), record) for record in records])
        norms = np.linalg.norm(rows, axis=1)
        mean = (rows * np.minimum(1.0, 0.5 / norms)[:, None]).mean(axis=0)
        given: Case = {"layout": layout, "model": model, "records": records, "clip_norm": 0.5}
        expected = {"gradients": rows.tolist(), "norms": norms.tolist(), "mean_of_clipped": mean.tolist()}
        found.append(_case(given, expected))
    return found


def _softmax_gradient(model: "np.ndarray[Any, Any]", record: Case) -> "np.ndarray[Any, Any]":
    features = np.array(record["features"])
    scores = model[:6].reshape(3, 2) @ features + model[6:]
    errors = np.exp(scores) / np.exp(scores).sum()
    errors[record["label"]] -= 1
    return np.concatenate([np.outer(errors, features).ravel(), errors])


def next_model() -> list[Case]:
    """A model, its momentum, the mean of the updates and the step; the model and the momentum after the round."""
    steps: list[tuple[list[float], list[float], list[float], float, float]] = [
        ([1.0, 2.0], [0.0, 0.0], [0.5, -0.5], 2.0, 0.0),
        ([1.0, 2.0], [0.25, 0.5], [0.5, -0.5], 1.0, 0.5),
        ([0.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-0.25, 0.125, 0.5], 0.5, 0.0),
    ]
    found = []
    for model, momentum, update, rate, decay in steps:
        state = ServerState(parameters=np.array(model, dtype=np.float32), momentum=np.array(momentum))
        after = server_step(state=state, mean_update=np.array(update), learning_rate=rate, momentum=decay)
        given: Case = {"model": model, "momentum": momentum, "mean_update": update}
        given |= {"learning_rate": rate, "momentum_factor": decay}
        found.append(_case(given, {"model": after.parameters.tolist(), "momentum": after.momentum.tolist()}))
    return found


def payments() -> list[Case]:
    """The reward, and for every client its budget and whether its update was accepted; the payments."""
    rounds: list[tuple[int, list[float], list[bool]]] = [
        (15_000_000, [2 / 15, 1 / 9, 4 / 45], [True, True, True]),
        (15_000_000, [2 / 15, 1 / 9, 4 / 45], [True, True, False]),
        (100, [1.0, 1.0, 1.0], [True, True, True]),
        (100, [1.0, 1.0, 1.0], [False, True, True]),
        (10_000_001, [0.1, 0.2, 0.0, 0.4], [True, True, False, True]),
        (7, [0.3], [True]),
    ]
    found = []
    for reward, declared, accepted in rounds:
        split = split_reward(reward_micro=reward, declared=declared, delivered=accepted)
        given = {"reward_micro": reward, "declared_rho": declared, "accepted": accepted}
        found.append(_case(given, {"payments_micro": list(split.payments), "kept_micro": split.kept}))
    return found


def epsilon() -> list[Case]:
    """The spent budget and δ; ε by the conversion of the ledger."""
    pairs = [(0.02, 1e-5), (0.211111, 1e-5), (1.0, 1e-5), (1.0, 1e-6), (10.0, 1e-5)]
    return [
        _case({"rho": rho, "delta": delta}, {"epsilon": epsilon_from_rho(rho=rho, delta=delta)}) for rho, delta in pairs
    ]


def vectors() -> list[Case]:
    """Numbers; their bytes on the wire in base64, the value of `Content-Digest`, and the digest in hexadecimal."""
    found = []
    for numbers in ([0.0], [1.0, -2.0, 0.5], [0.1, 1e-8, 3e38, -0.0]):
        data = encode(np.array(numbers))
        expected = {"bytes_base64": base64.b64encode(data).decode(), "content_digest": content_digest(data)}
        found.append(_case({"vector": numbers}, expected | {"digest": digest_of(data)}))
    return found


def canonical() -> list[Case]:
    """JSON values; their canonical form (RFC 8785), and its SHA-256."""
    values: list[Any] = [
        {"b": 1e-05, "a": [5.0, True, None, 1e21]},
        {"number": 0.1, "small": 5e-324, "large": 1.7976931348623157e308, "zero": -0.0, "whole": 110},
        {"é": 'ü\u2028"\\\n', "\U0001f600": "", "e": {}},
        {"nested": {"z": [], "a": [{"k": 1e-7}, 123456789012345680.0]}},
    ]
    found = []
    for value in values:
        text = canonical_json(value)
        expected = {"canonical": text.decode(), "sha256": hashlib.sha256(text).hexdigest()}
        found.append(_case({"value": value}, expected))
    return found


def spec_digests() -> list[Case]:
    """The spec of a task as it is served; its digest."""
    specs = [preset(name).facts() for name in PRESETS]
    later = specs[0] | {"a_field_of_a_later_version": {"value": 5.0}}
    return [_case({"spec": spec}, {"spec_digest": spec_digest(spec)}) for spec in [*specs, later]]


def profile_digests() -> list[Case]:
    """A profile; the digest that its receipt names. Fields that the profile does not have count as null."""
    full = Profile(label_counts=(11,) * 10, size=110, privacy_value=1.0, histogram_rho=0.1, lifetime_rho=2.0)
    bare = Profile(size=110, privacy_value=0.5)
    return [
        _case({"profile": profile.model_dump(mode="json")}, {"profile_digest": profile_digest(profile)})
        for profile in (full, bare)
    ]


def signatures() -> list[Case]:
    """A public key, a kind of message and a message without its unsigned fields; the Ed25519 signature."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    chain = {"task_id": "0123456789abcdef", "sequence": 12, "head": "44f6" * 16}
    receipt: Case = {"round_number": 1, "client_id": "c1", "state": "declared", "rho": 1 / 9}
    receipt |= {"recorded_at": "2026-01-02T03:04:05Z", "chain": chain}
    update = {"round_number": 1, "client_id": "c1", "digest": digest_of(bytes(2600)), "byte_length": 2600}
    update |= {"received_at": "2026-01-02T03:04:06.500000Z", "chain": chain}
    found = []
    for kind, message in (("budget", receipt), ("update", update)):
        signature = key.sign(kind, message)
        given = {"public_key": key.public_key, "kind": kind, "message": message}
        found.append(_case(given, {"key_id": signature.key_id, "value": signature.value}))
    return found


def signed_messages() -> list[Case]:
    """A public key, a kind and a message as served; the text that is signed, and whether the signature is right."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    chain = {"task_id": "0123456789abcdef", "sequence": 11, "head": "760b" * 16}
    offer: Case = {"round_number": 1, "attempt": 1, "reward_micro": 15_000_000, "total": 1 / 3, "standing": "invited"}
    offer |= {"model_version": 0, "model_digest": digest_of(bytes(2600)), "mechanism": "gradient_once"}
    offer |= {"clip_norm": 1.0, "dimension": 650, "rho_max": 0.1388888888888889, "noise": True}
    offer |= {"declare_by": "2026-01-02T03:04:30Z", "deliver_by": "2026-01-02T03:06:30Z"}
    offer |= {"declare_in_s": 29.5, "deliver_in_s": 149.5, "a_field_of_a_later_version": None, "chain": chain}
    enrolled: Case = {"client_id": "c1", "token": "shown-only-once", "ordinal": 0, "spec_digest": "9f" * 32}
    enrolled |= {"public_key": key.public_key, "chain": chain}
    found = []
    for kind, message, model in (("announcement", offer, RoundOffer), ("enrolment", enrolled, EnrolAnswer)):
        covered = {name: value for name, value in message.items() if name not in model.unsigned}
        served = message | {"signature": key.sign(kind, covered).model_dump(mode="json")}
        text = f"qidpfl:{kind}:{canonical_json(covered).decode()}"
        given = {"public_key": key.public_key, "kind": kind, "served": served}
        found.append(_case(given, {"signed_text": text, "valid": True}))
    # The same announcement with twice the reward.
    forged = found[0]["given"] | {"served": found[0]["given"]["served"] | {"reward_micro": 30_000_000}}
    text = found[0]["expected"]["signed_text"].replace('"reward_micro":15000000', '"reward_micro":30000000')
    return [*found, _case(forged, {"signed_text": text, "valid": False})]


def chain() -> list[Case]:
    """The first entries of a chain without their digests; the content and the head of each."""
    budget = {"client_id": "c1", "round_number": 1, "rho": 1 / 9, "state": "declared"}
    facts = [("profile", "client/c1", {"client_id": "c1", "size": 110}), ("budget", "budget/1/c1", budget)]
    contents = [digest_of_facts(row) for _, _, row in facts]
    entries = extended(
        FIRST_HEAD, 0, [(kind, subject, content) for (kind, subject, _), content in zip(facts, contents, strict=True)]
    )
    given = {"entries": [{"kind": kind, "subject": subject, "row": row} for kind, subject, row in facts]}
    found = [{"sequence": entry.sequence, "content": entry.content, "head": entry.head} for entry in entries]
    return [_case(given, {"entries": found})]


# --- what a client decides and checks, with bad cases -----------------------------------------------------------------


def answers() -> list[Case]:
    """An announcement, the task, the owner's limits and costs; the body of the answer, null: the client sends none."""
    total = equilibrium(reward=15.0, privacy_values=(0.9, 1.0, 1.1), privacy_weight=30.0).total
    usual: Case = {"standing": "invited", "reward_micro": 15_000_000, "total": total, "rho_max": 1.0}
    usual |= {"privacy_weight": 30.0, "rho_min": 1e-6, "privacy_value": 1.0, "rho_cap": None, "remaining_rho": 2.0}
    usual |= {"fixed_cost": 0.0, "min_utility": 0.0}
    changes: list[Case] = [
        {},
        {"standing": "min_share"},
        {"standing": "set_aside"},
        {"rho_max": 0.05},
        {"remaining_rho": 0.06},
        {"remaining_rho": 0.0},
        {"rho_cap": 0.04},
        {"rho_min": 0.12},
        {"rho_min": 0.05, "rho_max": 0.04},
        {"rho_min": 0.05, "rho_cap": 0.04},
        {"privacy_value": 1.6},
        {"reward_micro": 0},
        {"fixed_cost": 1.0},
        {"fixed_cost": 1.7},
        {"min_utility": 1.6},
        {"min_utility": 1.7},
    ]
    return [_case(given, {"answer": _answer(given)}) for given in (usual | change for change in changes)]


def _answer(given: Case) -> Case | None:
    spec = preset(
        "digits",
        {
            "game": {"privacy_weight": given["privacy_weight"]},
            "bounds": {"rho_min": given["rho_min"], "rho_max": 2.0},
            "defence": None,
        },
    )
    names = ("standing", "reward_micro", "total", "rho_max")
    offer = RoundOffer.model_validate(_offer() | {name: given[name] for name in names}, strict=False)
    owner = Owner(
        privacy_value=given["privacy_value"], rho_cap=given["rho_cap"] or 1e6, min_utility=given["min_utility"]
    )
    decision = decide(
        offer=offer, spec=spec, owner=owner, remaining_rho=given["remaining_rho"], fixed_cost=given["fixed_cost"]
    )
    if isinstance(decision, Bid):
        return {"rho": decision.rho}
    return None if decision.code is None else {"decline": True, "reason": decision.code.value}


def _offer() -> Case:
    """An announcement that fits the preset digits."""
    offer: Case = {"round_number": 2, "attempt": 1, "reward_micro": 15_000_000, "total": 1 / 3, "standing": "invited"}
    offer |= {"model_version": 1, "model_digest": digest_of(bytes(2600)), "mechanism": "gradient_once"}
    offer |= {"clip_norm": 1.0, "dimension": 650, "rho_max": 0.25, "noise": True}
    offer |= {"declare_by": "2026-01-02T03:04:30Z", "deliver_by": "2026-01-02T03:06:30Z"}
    return offer | {"declare_in_s": 29.5, "deliver_in_s": 149.5}


def grid_rounding() -> list[Case]:
    """A value of the signal, σ, and z of the discrete Gaussian; k of the grid 2⁻⁴⁰·σ, and the released float32."""
    found = []
    for value, std, drawn in (
        (0.0, 1.0, 0),
        (0.0, 1.0, 1),
        (0.25, 0.5, -(2**40)),
        (0.0123, 0.038569, 1_234_567_890_123),
        (-0.4, 0.038569, -2_345_678_901_234),
        (0.1, 4.242641, 17),
        (1e-14, 0.030856, 0),
    ):
        step = Fraction(std) / 2**40
        place = round(Fraction(value) / step)
        released = float(np.float32(float((place + drawn) * step)))
        found.append(_case({"value": value, "noise_std": std, "z": drawn}, {"k": place, "released": released}))
    return found


def payment_check() -> list[Case]:
    """A settled round as a client sees it, its own budget, and whether the task has a defence; whether it adds up."""
    share = 5_000_000
    fair: Case = {"defence": False, "rho": 1 / 9, "accepted": True, "payment_micro": share, "own_escrow_micro": None}
    fair |= {"announced_reward_micro": 15_000_000, "reward_micro": 15_000_000, "declared_total": 1 / 3}
    fair |= {"paid_micro": 15_000_000, "escrow_micro": None, "kept_micro": 0}
    held: Case = {"payment_micro": 4_000_000, "own_escrow_micro": 1_000_000}
    held |= {"paid_micro": 12_000_000, "escrow_micro": 3_000_000}
    changes: list[Case] = [
        {},
        {"payment_micro": share - 2},
        {"payment_micro": share + 2},
        {"kept_micro": 1},
        {"reward_micro": 14_000_000, "paid_micro": 14_000_000},
        {"accepted": False, "payment_micro": 0, "paid_micro": 10_000_000, "kept_micro": 5_000_000},
        {"accepted": False},
        held,
        held | {"escrow_micro": None},
        # A client that did not deliver has declared 1.25 times its plan.
        {"declared_total": 0.355555555556, "defence": True},
        {"declared_total": 0.355555555556},
        {"defence": True, "payment_micro": share - 2},
        {"defence": True, "payment_micro": 15_000_001, "paid_micro": 15_000_001},
    ]
    return [_case(given, {"holds": _adds_up(given)}) for given in (fair | change for change in changes)]


def _adds_up(given: Case) -> bool:
    own = given["payment_micro"] + (given["own_escrow_micro"] or 0)
    whole = given["paid_micro"] + (given["escrow_micro"] or 0) + given["kept_micro"]
    if given["reward_micro"] != given["announced_reward_micro"] or whole != given["reward_micro"]:
        return False
    if not given["accepted"]:
        return bool(own == 0)
    share = given["rho"] / given["declared_total"] * given["reward_micro"]
    most = given["reward_micro"] if given["defence"] else share + 1
    return bool(share - 1 <= own <= most)


def announcement_check() -> list[Case]:
    """The parts of a spec, an announcement, and the terms that the client has kept; whether the client accepts it."""
    spec = preset("digits")
    parts: Case = {
        "layout": spec.layout.model_dump(mode="json"),
        "privacy": {"mechanism": spec.privacy.mechanism.model_dump(mode="json"), "noise": spec.privacy.noise},
        "bounds": {"rho_max": spec.bounds.rho_max, "reward_max_micro": spec.bounds.reward_max_micro},
        "game": {"horizon": spec.game.horizon},
        "rounds": {"max_attempts": spec.rounds.max_attempts},
    }
    offer = _offer()
    known = {name: offer[name] for name in SeenOffer.__dataclass_fields__ if name in offer}
    before = known | {"round_number": 1, "model_version": 0}
    changes: list[tuple[Case, Case | None]] = [
        ({}, None),
        ({}, before),
        ({}, known),
        ({"attempt": 2}, known),
        ({"attempt": 4}, known),
        ({"rho_max": 0.5}, None),
        ({"rho_max": 0.6}, None),
        ({"mechanism": "paper_literal"}, None),
        ({"clip_norm": 2.0}, None),
        ({"clip_norm": None}, None),
        ({"dimension": 640}, None),
        ({"noise": False}, None),
        ({"reward_micro": 300_000_001}, None),
        ({"round_number": 21, "model_version": 20}, None),
        ({"model_version": 2}, None),
        ({"round_number": 1, "model_version": 0}, known),
        ({"attempt": 2, "model_digest": digest_of(bytes(4))}, known),
        ({"attempt": 2, "reward_micro": 14_000_000}, known),
        ({"attempt": 2, "total": 0.3}, known),
    ]
    found = []
    for change, kept in changes:
        given = {"spec": parts, "announcement": offer | change, "kept": kept}
        found.append(_case(given, {"accepted": _accepts(given)}))
    return found


def _accepts(given: Case) -> bool:
    kept = None if given["kept"] is None else SeenOffer(**given["kept"])
    offer = RoundOffer.model_validate(given["announcement"], strict=False)
    try:
        check_offer(offer=offer, spec=preset("digits"), latest=kept)
    except UntrustedCoordinator:
        return False
    return True


def chain_order() -> list[Case]:
    """Signed messages of one task in the order in which they came; whether the chain only grew."""
    first: list[tuple[str, int, int, int]] = [("enrolment", 0, 0, 2), ("profile", 0, 0, 5), ("announcement", 1, 1, 9)]
    budget, update, result = ("budget", 1, 0, 12), ("update", 1, 0, 15), ("result", 1, 0, 19)
    later = ("announcement", 2, 1, 21)
    stories: list[list[tuple[str, int, int, int] | tuple[str, int, int, int, str]]] = [
        [*first, budget, update, result, later],
        [*first, budget, budget],
        [*first, budget, ("announcement", 1, 2, 14), update, result],
        [*first, later],
        [*first, ("budget", 1, 0, 8)],
        [*first, budget, ("update", 1, 0, 11)],
        [*first, budget, update, ("result", 1, 0, 14)],
        [*first, budget, update, result, ("announcement", 2, 1, 8)],
        [*first, ("announcement", 1, 2, 8)],
        [*first, budget, (*budget, "another")],
        [*first, ("announcement", 1, 1, 9, "another")],
    ]
    found = []
    for story in stories:
        messages = [
            {
                "kind": kind,
                "round_number": number,
                "attempt": attempt,
                "sequence": sequence,
                "head": hashlib.sha256(f"{sequence}{''.join(other)}".encode()).hexdigest(),
            }
            for kind, number, attempt, sequence, *other in story
        ]
        found.append(_case({"messages": messages}, {"consistent": _grows(messages)}))
    return found


def _grows(messages: list[Case]) -> bool:
    known: list[KeptReceipt] = []
    for message in messages:
        new = KeptReceipt(**message, task_id="task", body="", key_id="", signature="")
        if any(contradicts(new, other) for other in known):
            return False
        known.append(new)
    return True


def key_endorsement() -> list[Case]:
    """The pinned key and the answer of `GET /v1/keys`; the keys that the client trusts, null: it stops."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    first, second, third = (
        SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(start, start + 32)))) for start in (0, 32, 64)
    )

    def served(key: SigningKey, endorsement: MessageSignature | None = None) -> Case:
        shown = {"key_id": key.key_id, "public_key": key.public_key, "created_at": "2026-01-02T03:04:05Z"}
        return shown | {"endorsement": None if endorsement is None else endorsement.model_dump(mode="json")}

    old, new, newest = served(first), served(second, first.endorse(second.public_key)), third.public_key
    lists: list[list[Case]] = [
        [old],
        [old, new],
        [old, new, served(third, second.endorse(newest))],
        [old, served(second)],
        [old, served(second, second.endorse(second.public_key))],
        [old, served(second, first.endorse(newest))],
        # The right key has signed another kind of message.
        [old, served(second, first.sign("head", {"public_key": second.public_key}))],
        [old, new, served(third, first.endorse(newest))],
        [new],
    ]
    found = []
    for keys in lists:
        try:
            followers = successors(first.public_key, KeyList.model_validate({"keys": keys}, strict=False))
            trusted: list[str] | None = [first.public_key, *(key.public_key for key in followers)]
        except WrongSignature:
            trusted = None
        given = {"pinned": first.public_key, "keys": keys}
        texts = [f"qidpfl:key:{canonical_json({'public_key': key['public_key']}).decode()}" for key in keys[1:]]
        found.append(_case(given, {"signed_texts": texts, "trusted": trusted}))
    return found


# The file of docs/conformance, and what is in it.
FILES = {
    "label-distance": label_distance,
    "best-answer": best_answer,
    "markets": markets,
    "noise": noise_std,
    "histogram": histogram,
    "clipping": clipping,
    "gradient": gradient,
    "next-model": next_model,
    "payments": payments,
    "epsilon": epsilon,
    "vectors": vectors,
    "canonical-json": canonical,
    "spec-digest": spec_digests,
    "profile-digest": profile_digests,
    "signatures": signatures,
    "signed-message": signed_messages,
    "chain": chain,
    "answers": answers,
    "grid-rounding": grid_rounding,
    "payment-check": payment_check,
    "announcement-check": announcement_check,
    "chain-order": chain_order,
    "key-endorsement": key_endorsement,
}
