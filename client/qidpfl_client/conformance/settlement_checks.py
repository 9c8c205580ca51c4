"""Checks of a coordinator after a round: the money, the next model, the ledger and the signatures."""

from collections.abc import Sequence

import numpy as np
from pydantic import ValidationError

from qidpfl_shared.core.money import split_reward
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.reward import Weighting
from qidpfl_shared.protocol.evidence import ProfileReceipt
from qidpfl_shared.protocol.messages import BudgetReceipt, EnrolAnswer, RoundOffer, RoundResult, UpdateReceipt
from qidpfl_shared.protocol.signatures import SignedMessage, WrongSignature, verify_message
from qidpfl_shared.protocol.wire import decode

from .played_client import PlayedClient, Reply
from .report import ConformanceReport

_CLOSE = 1e-6
_SAME_DIRECTION = 0.95
_SAME_LENGTH = 0.02


def read_results(report: ConformanceReport, clients: Sequence[PlayedClient], number: int) -> list[RoundResult]:
    """The results of a settled round, as each client sees it; none if they are not valid."""
    replies = [client.call("GET", f"/rounds/{number}") for client in clients]
    try:
        results = [RoundResult.model_validate_json(reply.body, extra="allow") for reply in replies]
    except ValidationError:
        report.fails(f"round_{number}.result", "; ".join(sorted({reply.said for reply in replies})))
        return []
    own = [result.own.client_id if result.own else None for result in results]
    fits = own == [client.client_id for client in clients] and all(result.clients is None for result in results)
    report.expect(f"round_{number}.own_result_only", fits, "a client sees another client's result, or not its own")
    return results


def check_money(
    report: ConformanceReport, clients: Sequence[PlayedClient], offer: RoundOffer, results: Sequence[RoundResult]
) -> None:
    """Compute the payments again from the budgets of all clients."""
    number, result = offer.round_number, results[0]
    escrow = result.escrow_micro or 0
    sums = result.paid_micro + escrow + result.kept_micro
    said = f"paid {result.paid_micro}, escrow {escrow} and kept {result.kept_micro}, reward {result.reward_micro}"
    fits = sums == result.reward_micro == offer.reward_micro
    report.expect(f"round_{number}.money_adds_up", fits, f"{said}, announced {offer.reward_micro}", said)
    declared = [client.budgets.get(number, 0.0) for client in clients]
    total = result.declared_total
    fits = total is not None and abs(total - sum(declared)) <= _CLOSE * sum(declared)
    report.expect(f"round_{number}.declared_total", fits, f"declared_total {total}, sent were {sum(declared)}")
    if escrow:
        report.not_checked(f"round_{number}.payments", "a part is held back")
        return
    order = sorted(range(len(clients)), key=lambda place: clients[place].ordinal)
    accepted = [own.accepted if (own := results[place].own) else False for place in order]
    split = split_reward(
        reward_micro=offer.reward_micro, declared=[declared[place] for place in order], delivered=accepted
    )
    told = [own.payment_micro if (own := results[place].own) else None for place in order]
    fits = told == list(split.payments) and result.kept_micro == split.kept
    report.expect(f"round_{number}.payments", fits, f"payments {told}, computed {list(split.payments)}")


def check_step(
    report: ConformanceReport, clients: Sequence[PlayedClient], before: bytes, after: bytes, number: int
) -> None:
    """Compare the next model with the mean of the updates. The clients have equal sizes, so weights do not matter."""
    spec = clients[0].spec
    updates = [
        decode(client.updates[number], dimension=spec.dimension) for client in clients if number in client.budgets
    ]
    mean = np.mean(np.array(updates, dtype=np.float64), axis=0)
    if spec.post_processing is not None:
        mean = np.concatenate([part for _, part in spec.post_processing([(0, mean)])])
    old, new = (decode(data, dimension=spec.dimension).astype(np.float64) for data in (before, after))
    step = (old - new) / spec.aggregation.learning_rate
    length, expected = float(np.linalg.norm(step)), float(np.linalg.norm(mean))
    cosine = float(step @ mean / max(length * expected, 1e-300))
    if not cosine > -_SAME_DIRECTION:
        report.fails("model.step", "the coordinator adds the updates; it must subtract them")
        return
    said = f"cosine {cosine:.3f} between the step and the mean of the updates, length {length / expected:.3f} of it"
    report.expect("model.step", cosine > _SAME_DIRECTION, said, said)
    if abs(length / expected - 1) < _SAME_LENGTH:
        report.holds("model.rate")
    elif spec.defence is not None or spec.aggregation.rule is not None:
        report.not_checked("model.rate", f"{said}; the task bounds the updates")
    elif spec.aggregation.weighting is Weighting.OPTIMAL:
        report.not_checked("model.rate", f"{said}; the weights depend on labels")
    else:
        report.fails("model.rate", said)


def check_ledger(report: ConformanceReport, client: PlayedClient) -> None:
    """Compare the ledger with what the client has sent."""
    reply = client.call("GET", "/clients/me/ledger")
    entries = {entry.get("release"): entry for entry in reply.members("entries")}
    sent = {f"round/{number}": client.budgets[number] for number in client.updates if number in client.budgets}
    sent["histogram"] = client.profile.histogram_rho or 0.0
    wrong = [
        f"{release}: {entries.get(release, {}).get('state')} {entries.get(release, {}).get('rho')}, sent {rho}"
        for release, rho in sent.items()
        if entries.get(release, {}).get("state") != "spent" or entries[release].get("rho") != rho
    ]
    report.expect("ledger.entries", not wrong, "; ".join(wrong))
    spent, told = sum(sent.values()), reply.json.get("spent_rho")
    fits = isinstance(told, int | float) and abs(told - spent) <= _CLOSE * spent
    report.expect("ledger.spent_rho", fits, f"spent_rho {told}, sent were {spent}")
    delta = client.spec.privacy.delta
    if client.spec.privacy.mechanism.build().heuristic or not fits:
        report.not_checked("ledger.epsilon", "the releases are not proven, or their sum is wrong")
        return
    epsilon, said = epsilon_from_rho(rho=spent, delta=delta), reply.json.get("epsilon")
    fits = isinstance(said, int | float) and abs(said - epsilon) <= 1e-4 * epsilon
    report.expect("ledger.epsilon", fits, f"epsilon {said}, computed {epsilon:.6g}")


def check_signatures(
    report: ConformanceReport, client: PlayedClient, messages: Sequence[tuple[str, SignedMessage]]
) -> None:
    """Verify every signed message with the key of the enrolment, and their order in the chain."""
    key = client.public_key
    if key is None:
        report.not_checked("signatures", "the coordinator has no key")
        return
    wrong = []
    for what, message in messages:
        try:
            verify_message(key, message)
        except (WrongSignature, ValueError) as error:
            wrong.append(f"{what}: {error}")
    report.expect("signatures", not wrong, "; ".join(wrong), f"{len(messages)} messages")
    places = [message.chain.sequence for _, message in messages if message.chain is not None]
    rising = places == sorted(places) and len(places) == len(messages)
    report.expect("signatures.order", rising, f"positions {places} of the chain do not rise")
    listed = [entry.get("public_key") for entry in client.caller.call("GET", "/v1/keys").members("keys")]
    report.expect("signatures.keys", key in listed, "GET /v1/keys does not list the key of the enrolment")


def signed(kind: type[SignedMessage], reply: Reply) -> list[tuple[str, SignedMessage]]:
    """The signed message of an answer; none if it is not valid."""
    try:
        return [(kind.kind, kind.model_validate_json(reply.body, extra="allow"))]
    except ValidationError:
        return []


RECEIPTS: dict[str, type[SignedMessage]] = {
    "enrolment": EnrolAnswer,
    "profile": ProfileReceipt,
    "budget": BudgetReceipt,
    "update": UpdateReceipt,
    "result": RoundResult,
}
