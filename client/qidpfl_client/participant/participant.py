"""The participant: wait for a round, declare a budget, train, add noise, upload, read the payment.

The participant writes every step to the journal before the next one begins. Killed at any point, it continues from the
journal: it sends the same noised bytes again, and never makes a second release.
"""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.account import ReleaseRefused
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.messages import Announcement, Declaration, Decline, Join, RoundOffer, RoundState, SpendState
from qidpfl_shared.protocol.releases import release_of, round_of
from qidpfl_shared.protocol.wire import digest_of, encode

from ..errors import Conflict, Refused, RoundClosed, UntrustedCoordinator
from ..journal.journal import Entry, SeenOffer, round_entry
from .bidding import NoBid, decide
from .session import ClientContext, TaskSession
from .verification import check_offer


class RetryLater(Exception):
    """The participant has nothing to do for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.3g} s")
        self.seconds = seconds


class DeliveryPolicy(Protocol):
    """Whether and when a participant delivers what it declared. Testbeds use it for slow clients and drop-outs."""

    def delivers(self, round_number: int) -> bool:
        """Whether the participant delivers in this round."""

    def delay_s(self, round_number: int) -> float:
        """How long the participant waits before it trains."""


@dataclass(frozen=True)
class ImmediateDelivery:
    """Delivers every declared update as soon as it is ready."""

    def delivers(self, round_number: int) -> bool:
        return True

    def delay_s(self, round_number: int) -> float:
        return 0.0


IMMEDIATE_DELIVERY = ImmediateDelivery()


class TaskParticipant:
    """The part of one data set in one task, after the client has joined it."""

    def __init__(
        self, context: ClientContext, session: TaskSession, *, delivery: DeliveryPolicy = IMMEDIATE_DELIVERY
    ) -> None:
        self._context = context
        self._api = context.api
        self._journal = context.journal
        self._noise = context.noise
        self._report = context.report
        # Bids use the privacy value that the profile has committed to.
        self._owner = replace(context.owner, privacy_value=session.profile.privacy_value)
        self._spec = session.spec
        self._learner = session.learner
        self._delivery = delivery
        self._seen = (0, 0)
        # The journal keeps the last training time, so that a restarted client also knows what training costs.
        self._training_s = self._journal.last_training_s(self._api.task_id) or 0.0
        self._started_at: dict[int, float] = {}
        self._selected: bool | None = None

    def step(self, *, wait_s: float) -> Announcement | None:
        """Wait for an announcement and answer it. Returns the announcement only when the task has ended."""
        news = self._api.announcement(after=self._seen, wait_s=wait_s)
        if news is None:
            return None
        if news.task_state.ended:
            self._settle_accounts(before=None)
            return news
        if news.round is not None:
            offer = news.round
            check_offer(offer=offer, spec=self._spec, latest=self._journal.latest_offer(self._api.task_id))
            self._journal.remember_offer(self._api.task_id, SeenOffer.of(offer))
            if self._seen != (offer.round_number, offer.attempt):
                self._settle_accounts(before=offer.round_number)
                if self._is_selected():
                    self._answer(offer)
                # An attempt that was answered completely is not answered again, however often it is announced.
                self._seen = (offer.round_number, offer.attempt)
        return None

    def _is_selected(self) -> bool:
        """The verdict, reported once. A client that is not selected only waits for the end of the task."""
        if self._selected is None:
            verdict = self._api.selection()
            self._selected = verdict.selected is not False
            word = "selected" if self._selected else "refused"
            rule = "" if verdict.distance_threshold is None else f", at most {verdict.distance_threshold:g}"
            self._report(f"{word}: label distance {verdict.label_distance or 0:.2f}{rule}")
            if not self._selected:
                self._report("waiting for the end of the task")
        return self._selected

    def _answer(self, offer: RoundOffer) -> None:
        """Do the next steps of this round; the journal tells which ones are already done."""
        release = release_of(offer.round_number)
        entry = self._journal.entry(self._api.task_id, release)
        if entry is None or entry.state is SpendState.FREED:
            entry = self._bid(offer)
        if entry is None or entry.acknowledged:
            return
        if entry.state is SpendState.SPENT:
            self._send(offer.round_number)
        elif entry.state is SpendState.RESERVED and self._declared(offer, entry):
            self._deliver(offer, entry)

    def _bid(self, offer: RoundOffer) -> Entry | None:
        account = self._context.account(self._spec)
        fixed = self._owner.prices.of_round(
            size=self._learner.size, training_s=self._training_s, transferred_bytes=2 * self._spec.layout.byte_length
        )
        decision = decide(
            offer=offer, spec=self._spec, owner=self._owner, remaining_rho=account.remaining_rho, fixed_cost=fixed
        )
        if isinstance(decision, NoBid):
            self._decline(offer, decision)
            return None
        entry = round_entry(
            task_id=self._api.task_id,
            spec=self._spec,
            round_number=offer.round_number,
            rho=decision.rho,
            size=self._learner.size,
        )
        try:
            self._journal.reserve(entry, account=account)
        except ReleaseRefused as error:
            self._decline(offer, NoBid(str(error)))
            return None
        failpoint("client.reserved")
        return entry

    def _decline(self, offer: RoundOffer, decision: NoBid) -> None:
        self._report(f"round {offer.round_number}: {decision.reason}")
        if not decision.invited:
            return
        try:
            self._api.answer(offer.round_number, Decline(decline=True, reason=decision.reason))
        except (RoundClosed, Conflict) as error:
            self._report(f"round {offer.round_number}: {error}")

    def _declared(self, offer: RoundOffer, entry: Entry) -> bool:
        """Declare the reserved budget, also a second time; free it if the coordinator refuses it."""
        request = Declaration(rho=entry.rho) if entry.rho > 0 else Join(join=True)
        try:
            self._api.answer(offer.round_number, request)
        except (RoundClosed, Conflict, Refused) as error:
            self._journal.free(self._api.task_id, entry.release)
            self._report(f"round {offer.round_number}: {error}")
            return False
        failpoint("client.declared")
        return True

    def _deliver(self, offer: RoundOffer, entry: Entry) -> None:
        if not self._delivery.delivers(offer.round_number):
            self._report(f"round {offer.round_number}: dropped out")
            return
        self._wait_for_turn(offer.round_number)
        try:
            payload = self._train(offer, entry)
        except UntrustedCoordinator:
            self._journal.free(self._api.task_id, entry.release)
            raise
        failpoint("client.noised")
        if not self._still_open(offer.round_number):
            self._journal.free(self._api.task_id, entry.release)
            self._report(f"round {offer.round_number}: closed before the update was ready; nothing was sent")
            return
        self._journal.spend(
            self._api.task_id,
            entry.release,
            digest=digest_of(payload),
            payload=payload,
            training_s=self._training_s,
        )
        failpoint("client.journaled")
        self._send(offer.round_number)

    def _wait_for_turn(self, round_number: int) -> None:
        begun = self._started_at.setdefault(round_number, time.monotonic())
        left = begun + self._delivery.delay_s(round_number) - time.monotonic()
        if left > 0:
            raise RetryLater(left)

    def _train(self, offer: RoundOffer, entry: Entry) -> bytes:
        model = self._context.models.get(
            self._api, offer.model_version, digest=offer.model_digest, dimension=self._spec.dimension
        )
        started = time.perf_counter()
        vector = self._learner.release(
            privacy=self._spec.privacy,
            model=model,
            rho=entry.rho if self._spec.privacy.noise else None,
            noise=self._noise,
            name=f"{self._spec.digest}/{entry.release}",
        )
        self._training_s = time.perf_counter() - started
        return encode(vector)

    def _still_open(self, round_number: int) -> bool:
        """Whether the round still takes updates. Asked before the upload: a late one is a release without payment."""
        news = self._api.announcement(after=(round_number, 0), wait_s=0)
        if news is None:
            # With several coordinators, this one may learn of the round later than the one that announced it.
            return self._api.round(round_number).state is RoundState.OPEN
        offer = news.round
        return offer is not None and offer.round_number == round_number and offer.deliver_in_s > 0

    def _send(self, round_number: int, *, last_chance: bool = False) -> bool:
        """Send the bytes of the journal, also a second time. Returns whether the coordinator has them."""
        release = release_of(round_number)
        payload = self._journal.payload(self._api.task_id, release)
        entry = self._journal.entry(self._api.task_id, release)
        assert payload is not None and entry is not None
        try:
            receipt = self._api.upload(round_number, payload)
        except (RoundClosed, Conflict, Refused) as error:
            self._report(f"round {round_number}: the coordinator refused the update: {error}")
            # A round that opens again accepts the same bytes: keep them until the round is over.
            if last_chance or not isinstance(error, RoundClosed):
                self._journal.mark_unpaid(self._api.task_id, release)
            return False
        failpoint("client.sent")
        if receipt.digest != entry.digest:
            raise UntrustedCoordinator(f"the receipt of round {round_number} is for other bytes")
        self._journal.acknowledge(self._api.task_id, release)
        self._report(f"round {round_number}: delivered at rho {entry.rho:.4g}")
        return True

    # --- after a round -----------------------------------------------------------------------------------------------

    def _settle_accounts(self, *, before: int | None) -> None:
        """Finish the rounds before `before`, or all if None: send again, free reservations, read payments."""
        for entry in self._journal.entries(self._api.task_id):
            number = round_of(entry.release)
            if number is None or (before is not None and number >= before):
                continue
            if entry.state is SpendState.RESERVED:
                self._journal.free(self._api.task_id, entry.release)
            elif entry.state is SpendState.SPENT and not entry.acknowledged:
                # The receipt was lost: send again to learn whether the coordinator has the bytes.
                if self._send(number, last_chance=True):
                    self._read_payment(number)
            elif entry.state is SpendState.SPENT and entry.payment_micro is None:
                self._read_payment(number)

    def _read_payment(self, round_number: int) -> None:
        result = self._api.round(round_number)
        if result.state is RoundState.OPEN:
            return
        part = result.own
        payment = 0 if part is None else part.payment_micro
        accepted = part is not None and part.accepted
        self._journal.pay(self._api.task_id, release_of(round_number), payment, accepted=accepted)
        spent = self._context.account(self._spec).spent_rho
        self._report(f"round {round_number}: paid {from_micro(payment):.6f}; spent rho {spent:.4g} so far")
