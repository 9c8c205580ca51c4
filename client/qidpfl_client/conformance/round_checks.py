"""Checks of a coordinator in its rounds: announcements, models, budgets, uploads and their repeats."""

from collections.abc import Sequence

from pydantic import ValidationError

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import content_digest, digest_of

from .joining_checks import expect_answer
from .played_client import PlayedClient, Reply
from .report import ConformanceReport

_CLOSE = 1e-6
_LONG_POLL_S = 1.0


def read_offer(reply: Reply) -> RoundOffer | None:
    """The round of an announcement; None if there is none, or it is not valid."""
    try:
        return RoundOffer.model_validate(reply.json.get("round"), extra="allow")
    except ValidationError:
        return None


def check_offer(report: ConformanceReport, spec: TaskSpec, offers: Sequence[tuple[PlayedClient, RoundOffer]]) -> None:
    """Compare the announcement of a round with the spec, and its total with the best answers of all clients."""
    offer, number = offers[0][1], offers[0][1].round_number
    mechanism = spec.privacy.mechanism.model_dump()
    wrong = [
        f"{what} {said}, the spec says {expected}"
        for what, said, expected in (
            ("mechanism", offer.mechanism.value, mechanism["name"]),
            ("clip_norm", offer.clip_norm, mechanism.get("clip_norm")),
            ("dimension", offer.dimension, spec.dimension),
            ("noise", offer.noise, spec.privacy.noise),
            ("model_version", offer.model_version, number - 1),
            ("rho_max", offer.rho_max, min(offer.rho_max, spec.bounds.rho_max)),
            ("reward_micro", offer.reward_micro, min(offer.reward_micro, spec.bounds.reward_max_micro)),
        )
        if said != expected
    ]
    report.expect(f"round_{number}.announcement", not wrong, "; ".join(wrong))
    common = {(other.reward_micro, other.total, other.model_digest) for _, other in offers}
    report.expect(f"round_{number}.same_for_all", len(common) == 1, "clients got different rewards, totals or models")
    check = f"round_{number}.total"
    invited = [(client, other) for client, other in offers if other.standing is Standing.INVITED]
    if len(invited) < len(offers) or not invited:
        report.not_checked(check, "not all clients of the kit are invited")
        return
    best = [client.best(other) for client, other in invited]
    largest = 1.0 if spec.defence is None else spec.defence.max_share / len(invited)
    if max(best) >= largest * offer.total * (1 - _CLOSE):
        report.not_checked(check, "a client has reached the largest share")
        return
    said = f"S is {offer.total:.8g}, the best answers add up to {sum(best):.8g}"
    report.expect(check, abs(sum(best) - offer.total) <= _CLOSE * offer.total, said, said)


def check_model(report: ConformanceReport, client: PlayedClient, offer: RoundOffer) -> bytes:
    """Download the announced model, with its headers and a conditional request; returns its bytes."""
    path = f"/models/{offer.model_version}"
    reply = client.call("GET", path)
    if not expect_answer(report, "model", reply, 200):
        return b""
    data = reply.body
    length = 4 * client.spec.dimension
    report.expect("model.length", len(data) == length, f"{len(data)} bytes, expected {length}")
    wrong = f"digest {digest_of(data)}, announced {offer.model_digest}"
    report.expect("model.digest", digest_of(data) == offer.model_digest, wrong)
    header = reply.headers.get("content-digest")
    report.expect("model.content_digest", header == content_digest(data), f"Content-Digest is {header}")
    etag = reply.headers.get("etag", "")
    if report.expect("model.etag", bool(etag), "there is no ETag"):
        again = client.call("GET", path, headers={"If-None-Match": etag})
        expect_answer(report, "model.not_modified", again, 304)
    expect_answer(report, "model.unknown", client.call("GET", "/models/999999"), 404, "not_found")
    return data


def check_budget(report: ConformanceReport, client: PlayedClient, offer: RoundOffer) -> Reply:
    """Declare a budget, with invalid ones before it and repeats after it; returns the receipt."""
    number = offer.round_number
    early = client.upload(number, bytes(4 * client.spec.dimension))
    expect_answer(report, "update.before_budget", early, 409, "budget_missing")
    high = client.call("PUT", f"/rounds/{number}/budget", body={"rho": 2 * offer.rho_max})
    expect_answer(report, "budget.above_rho_max", high, 422, "out_of_bounds")
    none = client.call("PUT", f"/rounds/{number}/budget", body={"rho": 0})
    expect_answer(report, "budget.zero", none, 422, "invalid_request")
    later = client.call("PUT", "/rounds/999999/budget", body={"rho": client.best(offer)})
    expect_answer(report, "budget.unknown_round", later, 404, "not_found")
    receipt = client.declare(offer)
    if not expect_answer(report, "budget", receipt, 200):
        return receipt
    told = (receipt.json.get("round_number"), receipt.json.get("state"), receipt.json.get("rho"))
    wanted = (number, "declared", client.budgets[number])
    report.expect("budget.receipt", told == wanted, f"the receipt says {told}, sent was {wanted}")
    again = client.declare(offer)
    report.expect("budget.repeated", again.body == receipt.body, "a repeat got another receipt")
    other = client.call("PUT", f"/rounds/{number}/budget", body={"rho": client.budgets[number] / 2})
    expect_answer(report, "budget.another", other, 409, "budget_declared")
    return receipt


def check_upload(report: ConformanceReport, client: PlayedClient, offer: RoundOffer) -> Reply:
    """Upload an update, with invalid ones before it and repeats after it; returns the receipt."""
    number, data = offer.round_number, client.update(offer)
    nan = b"\x00\x00\xc0\x7f" + data[4:]
    expect_answer(report, "update.no_digest", client.upload(number, data, {}), 422, "digest_required")
    wrong = client.upload(number, data, {"Content-Digest": content_digest(nan)})
    expect_answer(report, "update.wrong_digest", wrong, 422, "digest_mismatch")
    expect_answer(report, "update.too_short", client.upload(number, data[:-4]), 422, "wrong_length")
    expect_answer(report, "update.not_finite", client.upload(number, nan), 422, "not_finite")
    receipt = client.upload(number, data)
    if not expect_answer(report, "update", receipt, 200):
        return receipt
    told = (receipt.json.get("digest"), receipt.json.get("byte_length"), receipt.json.get("client_id"))
    wanted = (digest_of(data), len(data), client.client_id)
    report.expect("update.receipt", told == wanted, f"the receipt says {told}, sent was {wanted}")
    report.expect("update.repeated", client.upload(number, data).body == receipt.body, "a repeat got another receipt")
    other = client.upload(number, data[4:] + data[:4])
    expect_answer(report, "update.another", other, 409, "update_exists")
    return receipt


def check_long_poll(report: ConformanceReport, client: PlayedClient, offer: RoundOffer) -> None:
    """Wait for something newer than the open round."""
    reply = client.poll((offer.round_number, offer.attempt), _LONG_POLL_S)
    fits = reply.status == 204 and reply.seconds > 0.8 * _LONG_POLL_S
    report.expect("long_poll.waits", fits, f"{reply.said} after {reply.seconds:.1f} s, expected 204 after 1 s")
    wrong = client.call("GET", "/rounds/current?after=x")
    expect_answer(report, "long_poll.invalid", wrong, 422, "invalid_request")
    method = client.call("DELETE", "/rounds/current")
    expect_answer(report, "method_not_allowed", method, 405, "method_not_allowed")


def check_closed(report: ConformanceReport, client: PlayedClient, offer: RoundOffer, receipt: Reply) -> None:
    """Repeat the uploads of a settled round, and send its bytes in the next one."""
    data = client.updates[offer.round_number]
    late = client.upload(offer.round_number, data)
    same = late.status == 200 and late.body == receipt.body
    report.expect("closed_round.repeated", same, f"{late.said}: a repeat after the settlement gets the first receipt")
    other = client.upload(offer.round_number, data[4:] + data[:4])
    expect_answer(report, "closed_round.another", other, 409, "update_exists")
