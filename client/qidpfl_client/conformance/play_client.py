"""Play the clients of a task at a coordinator, and judge its answers."""

import time
from collections.abc import Callable, Sequence

import httpx
import numpy as np

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.messages import Profile, RoundOffer
from qidpfl_shared.protocol.signatures import SignedMessage
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import Misconfigured, Unreachable, UntrustedCoordinator
from . import joining_checks, round_checks, settlement_checks
from .played_client import PlayedClient, RawCaller
from .report import ConformanceReport
from .settlement_checks import RECEIPTS, signed

_RECORDS_PER_LABEL = 11
_HISTOGRAM_RHO = 0.1
_POLL_S = 10.0


def play_client(
    http: httpx.Client, *, codes: Sequence[str], clients: int | None, wait_s: float, say: Callable[[str], None]
) -> ConformanceReport:
    """Play all clients of the task of these codes for two rounds, then leave.

    Args:
        http: the connection to the coordinator.
        codes: one code for all clients, or one for each.
        clients: how many clients to play; None: as many as the task expects.
        wait_s: how long to wait for a round.
        say: prints a line.

    Raises:
        Misconfigured: the codes, or the task, do not fit.
    """
    report, caller = ConformanceReport(), RawCaller(http)
    spec = joining_checks.read_task(report, caller, codes[0])
    if spec.game.policy is RewardPolicy.NONE or not spec.privacy.noise:
        raise Misconfigured("the task has no game or no noise: create one for this check, for example preset digits")
    count = clients or spec.rounds.expected_clients or spec.rounds.min_clients
    if 1 < len(codes) < count:
        raise Misconfigured(f"{count} clients need {count} codes or one code for all, and there are {len(codes)}")
    task_id = codes[0].partition(".")[0]
    say(f"playing {count} clients of task {task_id}")
    played = [
        PlayedClient(
            caller=caller,
            task_id=task_id,
            code=codes[place if len(codes) > 1 else 0],
            profile=_profile(spec, place, count),
            spec=spec,
        )
        for place in range(count)
    ]
    try:
        _Game(report, played, wait_s).play()
    except (Unreachable, UntrustedCoordinator) as error:
        report.fails("answers", f"the kit stopped here: {error}")
    joining_checks.check_document(report, caller, spec)
    joining_checks.check_form(report, caller.replies)
    return report


def _profile(spec: TaskSpec, place: int, count: int) -> Profile:
    """A profile whose labels fit the reference; privacy values differ a little from client to client."""
    weights = np.ones(spec.workload.labels)
    if spec.selection.reference == "given":
        weights = np.array(spec.selection.reference_weights)
    exact = _RECORDS_PER_LABEL * weights.size * weights / weights.sum()
    counts = tuple(int(value) for value in np.round(exact))
    low, high = spec.bounds.privacy_value_min, spec.bounds.privacy_value_max
    value = min(max(1.0 + 0.05 * (2 * place / max(1, count - 1) - 1), low), high)
    rho = spec.privacy.histogram_rho or _HISTOGRAM_RHO
    return Profile(label_counts=counts, size=sum(counts), privacy_value=value, histogram_rho=rho)


class _Game:
    """The clients in one task. The first one also sends what is wrong, and keeps the signed messages."""

    def __init__(self, report: ConformanceReport, clients: Sequence[PlayedClient], wait_s: float) -> None:
        self._report, self._clients, self._first = report, clients, clients[0]
        self._wait_s = wait_s
        self._kept: dict[str, list[tuple[str, SignedMessage]]] = {}

    def play(self) -> None:
        """Enrol, play two rounds, leave."""
        self._join()
        offers = self._await_round((0, 0))
        if not offers:
            self._report.fails("round_1", "no round was announced in time; does the task expect more clients?")
            return
        joining_checks.check_selection(self._report, self._clients)
        model = self._play_first(offers)
        later = self._await_round((1, 1000))
        if later:
            self._check_settled(offers[0][1], model)
            self._play_second(later)
        else:
            self._report.not_checked("round_2", "no second round came: use a task with a horizon of at least 2")
            self._check_settled(offers[0][1], model)
        self._leave()

    def _keep(self, messages: list[tuple[str, SignedMessage]]) -> None:
        for kind, message in messages:
            self._kept.setdefault(kind, []).append((kind, message))

    def _join(self) -> None:
        view = self._first.caller.call("GET", f"/v1/tasks/{self._first.task_id}", token=self._first.code)
        joining_checks.check_enrolment(self._report, self._first, str(view.json.get("spec_digest")))
        enrolled = [reply for reply in self._first.caller.replies if reply.status == 201]
        self._keep(signed(RECEIPTS["enrolment"], enrolled[-1]))
        joining_checks.check_profile(self._report, self._first)
        self._keep(signed(RECEIPTS["profile"], self._first.store_profile()))
        for client in self._clients[1:]:
            if (reply := client.enrol()).status != 201:
                raise Misconfigured(f"a client cannot enrol: {reply.said}")
            if (reply := client.store_profile()).status != 200:
                raise Misconfigured(f"a client cannot store its profile: {reply.said}")

    def _await_round(self, after: tuple[int, int]) -> list[tuple[PlayedClient, RoundOffer]]:
        """The next announcement of every client; none if it does not come in time."""
        deadline = time.monotonic() + self._wait_s
        offer = None
        while offer is None and time.monotonic() < deadline:
            reply = self._first.poll(after, _POLL_S)
            if reply.json.get("task_state") in ("finished", "failed", "stopped"):
                return []
            offer = round_checks.read_offer(reply)
        offers = [(client, round_checks.read_offer(client.poll(after, 0.0))) for client in self._clients]
        found = [(client, offer) for client, offer in offers if offer is not None]
        return found if len(found) == len(offers) else []

    def _play_first(self, offers: Sequence[tuple[PlayedClient, RoundOffer]]) -> bytes:
        report, (first, offer) = self._report, offers[0]
        round_checks.check_offer(report, first.spec, offers)
        self._keep([("announcement", offer)])
        model = round_checks.check_model(report, first, offer)
        self._keep(signed(RECEIPTS["budget"], round_checks.check_budget(report, first, offer)))
        self._receipt = round_checks.check_upload(report, first, offer)
        self._keep(signed(RECEIPTS["update"], self._receipt))
        round_checks.check_long_poll(report, first, offer)
        for client, own in offers[1:]:
            self._deliver(client, own)
        return model

    def _deliver(self, client: PlayedClient, offer: RoundOffer) -> None:
        if offer.standing is not Standing.INVITED:
            return
        for reply in (client.declare(offer), client.upload(offer.round_number, client.update(offer))):
            if reply.status != 200:
                self._report.fails(f"round_{offer.round_number}.plain_client", reply.said)
                return

    def _check_settled(self, offer: RoundOffer, before: bytes) -> None:
        report, first = self._report, self._first
        results = settlement_checks.read_results(report, self._clients, offer.round_number)
        if results:
            settlement_checks.check_money(report, self._clients, offer, results)
        reply = first.call("GET", f"/rounds/{offer.round_number}")
        self._keep(signed(RECEIPTS["result"], reply))
        after = first.call("GET", f"/models/{offer.round_number}").body
        if len(before) == len(after) == 4 * first.spec.dimension:
            settlement_checks.check_step(report, self._clients, before, after, offer.round_number)
        else:
            report.fails("model.step", f"model {offer.round_number} has {len(after)} bytes")
        settlement_checks.check_ledger(report, first)
        order = ("enrolment", "profile", "announcement", "budget", "update", "result")
        messages = [message for kind in order for message in self._kept.get(kind, [])]
        settlement_checks.check_signatures(report, first, messages)
        round_checks.check_closed(report, first, offer, self._receipt)

    def _play_second(self, offers: Sequence[tuple[PlayedClient, RoundOffer]]) -> None:
        """All but the last client deliver; the last one declines and comes too late."""
        report, (first, offer) = self._report, offers[0]
        number = offer.round_number
        round_checks.check_offer(report, first.spec, offers)
        if first.declare(offer).status == 200:
            replayed = first.upload(number, first.updates[number - 1])
            joining_checks.expect_answer(report, "update.replayed", replayed, 409, "update_replayed")
        last, own = offers[-1]
        enough = len(offers) > first.spec.rounds.min_updates
        if enough:
            joining_checks.expect_answer(report, "budget.declined", last.decline(own), 200)
        for client, other in offers[:-1] if enough else offers:
            self._deliver(client, other)
        if not enough:
            report.not_checked("closed_round.late", f"needs more than {first.spec.rounds.min_updates} clients")
        elif self._is_settled(number):
            late = last.upload(number, last.update(own))
            joining_checks.expect_answer(report, "closed_round.late", late, 410, "round_closed")
            results = settlement_checks.read_results(report, self._clients, number)
            if results:
                settlement_checks.check_money(report, self._clients, offer, results)
        else:
            report.fails("closed_round.late", f"round {number} was not settled in time")

    def _is_settled(self, number: int) -> bool:
        deadline = time.monotonic() + self._wait_s
        while time.monotonic() < deadline:
            if self._first.call("GET", f"/rounds/{number}").json.get("state") == "settled":
                return True
            time.sleep(0.2)
        return False

    def _leave(self) -> None:
        replies = [client.call("DELETE", "/clients/me") for client in self._clients]
        wrong = [reply.said for reply in replies if reply.status != 204]
        self._report.expect("leave", not wrong, ", ".join(wrong))
