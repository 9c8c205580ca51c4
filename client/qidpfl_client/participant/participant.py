"""The participant: wait for a round, declare a budget, train, add noise, upload, read the payment.

The participant writes every step to the journal before the next one begins. Killed at any point, it continues from the
journal: it sends the same noised bytes again, and never makes a second release.
"""

from dataclasses import replace

from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.account import ReleaseRefused
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import (
    Announcement,
    Declaration,
    Decline,
    Join,
    RoundOffer,
    RoundResult,
    RoundState,
    TaskState,
)
from qidpfl_shared.protocol.releases import release_of, round_of
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import Vector32, digest_of, encode

from ..errors import (
    ClientError,
    Conflict,
    Refused,
    RoundClosed,
    Unavailable,
    Unreachable,
    UntrustedCoordinator,
)
from ..journal.journal import Entry, SeenOffer, round_entry
from .bidding import DeclineCode, NoBid, decide
from .delivery import IMMEDIATE_DELIVERY, DeliveryPolicy
from .session import ClientContext, TaskSession
from .slots import MonotonicClock, next_slot, slot_s
from .verification import check_offer, check_promise, check_result, check_terms
from .waiting import EnrolmentWatch

# While a task waits for clients, the client asks this often how many there are.
_ENROLMENT_POLL_S = 10.0


class RetryLater(Exception):
    """The participant has nothing to do for `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.3g} s")
        self.seconds = seconds


class TaskParticipant:
    """The part of one data set in one task, after the client has joined it.

    With `slots` an update leaves at a time that depends on public quantities only. Testbeds turn them off.
    """

    def __init__(
        self,
        context: ClientContext,
        session: TaskSession,
        *,
        delivery: DeliveryPolicy = IMMEDIATE_DELIVERY,
        slots: bool = True,
        clock: MonotonicClock | None = None,
        watch: EnrolmentWatch | None = None,
    ) -> None:
        self._context = context
        self._api = context.api
        self._journal = context.journal
        self._noise = context.noise
        self._report = context.report
        self._receipts = context.receipts
        # Bids use the privacy value that the profile has committed to, if it reports one.
        reported = session.profile.privacy_value
        self._owner = context.owner if reported is None else replace(context.owner, privacy_value=reported)
        self._spec = session.spec
        # Computed once: it is a hash of the whole spec.
        self._spec_digest = session.spec.digest
        self._learner = session.learner
        self._delivery = delivery
        self._slots = slots
        self._slot_s = slot_s(
            mechanism=session.spec.privacy.mechanism,
            size=session.learner.size,
            dimension=session.spec.dimension,
            device=session.learner.device_type,
        )
        self._clock = clock or MonotonicClock()
        self._closes_at, self._seen = 0.0, (0, 0)
        self._started_at: dict[int, float] = {}
        self._selected: bool | None = None
        self._watch = watch

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return self._spec

    def step(self, *, wait_s: float) -> Announcement | None:
        """Wait for an announcement and answer it. Returns the announcement only when the task has ended."""
        if self._watch is not None and self._selected is None:
            self._watch.note()
            wait_s = min(wait_s, _ENROLMENT_POLL_S)
        asked_at = self._context.open_rounds.clock()
        news = self._api.announcement(after=self._seen, wait_s=wait_s, last_result=self._seen != (0, 0))
        if news is None:
            return None
        if news.task_state.ended:
            # The operator may resume a task that failed: its last round then accepts the same bytes.
            self._settle_accounts(news, before=None, is_final=news.task_state is not TaskState.FAILED)
            self._journal.flush()
            return news
        if news.round is not None:
            offer = news.round
            self._closes_at = self._clock.now() + offer.deliver_in_s
            check_offer(offer=offer, spec=self._spec, latest=self._journal.latest_offer(self._api.task_id))
            self._receipts.keep(offer, round_number=offer.round_number, attempt=offer.attempt)
            self._context.open_rounds.note(self._api, offer, asked_at=asked_at)
            self._journal.remember_offer(self._api.task_id, SeenOffer.of(offer))
            if self._seen != (offer.round_number, offer.attempt):
                self._settle_accounts(news, before=offer.round_number)
                if self._is_selected():
                    self._answer(offer)
                    left = self._closes_at - self._clock.now()
                    self._context.countdown(f"round {offer.round_number}: waiting for the other clients", left)
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
            distance = verdict.label_distance
            self._report(word if distance is None else f"{word}: label distance {distance:.2f}{rule}")
            if not self._selected:
                self._report("waiting for the end of the task")
        return self._selected

    def _answer(self, offer: RoundOffer) -> None:
        """Do the next steps of this round; the journal tells which ones are already done."""
        release = release_of(offer.round_number)
        entry = self._journal.entry(self._api.task_id, release)
        if entry is None or entry.state is SpendState.FREED:
            entry = self._bid(offer)
        if entry is not None and entry.acknowledged and entry.state is SpendState.SPENT_UNPAID:
            # The round was void and has opened again with the update of this client.
            self._journal.expect_payment(self._api.task_id, release)
        if entry is None or entry.acknowledged:
            return
        if entry.state is SpendState.SPENT:
            self._send_again(offer.round_number)
        elif entry.state is SpendState.RESERVED and self._declared(offer, entry):
            self._deliver(offer, entry)

    def _bid(self, offer: RoundOffer) -> Entry | None:
        check_terms(offer=offer, spec=self._spec, privacy_value=self._owner.privacy_value)
        account = self._context.account(self._spec)
        # The length of a slot, not the measured time: else the answer would tell how long the training took.
        fixed = self._owner.prices.of_round(
            size=self._learner.size, training_s=self._slot_s, transferred_bytes=2 * self._spec.layout.byte_length
        )
        decision = decide(
            offer=offer, spec=self._spec, owner=self._owner, remaining_rho=account.remaining_rho, fixed_cost=fixed
        )
        if not isinstance(decision, NoBid) and self._is_too_late():
            decision = NoBid("too late: the round closes before the first slot of an update", DeclineCode.TOO_LATE)
        if isinstance(decision, NoBid):
            self._decline(offer, decision)
            return None
        entry = round_entry(
            task_id=self._api.task_id,
            spec=self._spec,
            round_number=offer.round_number,
            rho=decision.rho,
            size=self._learner.size,
            device_type=self._learner.device_type,
            claimed=self._learner.claimed,
            common_noise=self._context.common_noise,
        )
        try:
            self._journal.reserve(entry, account=account)
        except ReleaseRefused as error:
            self._decline(offer, NoBid(str(error), DeclineCode.OWNER_LIMIT))
            return None
        failpoint("client.reserved")
        return entry

    def _decline(self, offer: RoundOffer, decision: NoBid) -> None:
        """Tell the owner the reason, and the coordinator the code."""
        self._report(f"round {offer.round_number}: {decision.reason}")
        if decision.code is None:
            return
        self._journal.flush()
        try:
            receipt = self._api.answer(offer.round_number, Decline(decline=True, reason=decision.code.value))
            self._receipts.keep(receipt, round_number=offer.round_number)
        except (RoundClosed, Conflict) as error:
            self._report(f"round {offer.round_number}: {error}")

    def _declared(self, offer: RoundOffer, entry: Entry) -> bool:
        """Declare the reserved budget, also a second time; free it if the coordinator refuses it."""
        request = Declaration(rho=entry.rho) if entry.rho > 0 else Join(join=True)
        try:
            receipt = self._api.answer(offer.round_number, request)
            check_promise(receipt=receipt, offer=offer, spec=self._spec, rho=entry.rho)
        except (RoundClosed, Conflict, Refused) as error:
            if error.code == ErrorCode.BUDGET_DECLARED:
                self._refuse_budget_of_others(offer.round_number)
            self._journal.free(self._api.task_id, entry.release)
            self._report(f"round {offer.round_number}: {error}")
            return False
        failpoint("client.declared")
        self._receipts.keep(receipt, round_number=offer.round_number)
        return True

    def _refuse_budget_of_others(self, round_number: int) -> None:
        """Stop if the coordinator has another budget of this client than a decline: another copy of it takes part."""
        release = release_of(round_number)
        if any(one.release == release and one.state is not SpendState.FREED for one in self._api.ledger().entries):
            raise UntrustedCoordinator(
                f"the coordinator has another budget of this client for round {round_number} than its journal: another"
                " copy of the journal takes part, or this one is an older copy; the budget stays charged"
            )

    def _deliver(self, offer: RoundOffer, entry: Entry) -> None:
        if not self._delivery.delivers(offer.round_number):
            self._drop_out(offer, entry)
            return
        self._wait_for_turn(offer.round_number)
        if self._is_too_late():
            self._give_up(offer, entry, self._open_attempt(offer.round_number))
            return
        try:
            model = self._context.models.get(
                self._api, offer.model_version, digest=offer.model_digest, dimension=self._spec.dimension
            )
            begun = self._clock.now()
            payload = self._train(model, entry)
            training_s = self._clock.now() - begun
        except (Unreachable, Unavailable):
            raise
        except ClientError:
            # Nothing was sent, and nothing will be.
            self._journal.free(self._api.task_id, entry.release)
            raise
        failpoint("client.noised")
        in_time = self._wait_for_slot(begun)
        attempt = self._open_attempt(offer.round_number)
        if attempt is None or not in_time:
            self._give_up(offer, entry, attempt)
            return
        digest = digest_of(payload)
        self._journal.spend(self._api.task_id, entry.release, digest=digest, payload=payload, training_s=training_s)
        failpoint("client.journaled")
        self._send(offer.round_number, payload, digest=digest, rho=entry.rho)

    def _drop_out(self, offer: RoundOffer, entry: Entry) -> None:
        """Miss the round, as a client that loses its power would; tell the coordinator unless it is to be silent."""
        if self._delivery.silent:
            self._report(f"round {offer.round_number}: dropped out")
            return
        self._journal.free(self._api.task_id, entry.release)
        self._decline(offer, NoBid("dropped out", DeclineCode.TOO_LATE))

    def _wait_for_turn(self, round_number: int) -> None:
        begun = self._started_at.setdefault(round_number, self._clock.now())
        left = begun + self._delivery.delay_s(round_number) - self._clock.now()
        if left > 0:
            raise RetryLater(left)

    def _is_too_late(self) -> bool:
        """Whether the round closes before an update of a training that begins now may leave."""
        return self._slots and self._clock.now() + self._slot_s >= self._closes_at

    def _wait_for_slot(self, begun: float) -> bool:
        """Wait until the update may leave; returns False if the round closes earlier.

        The client then waits for the end of the round: the time at which it gives up must be a public one too.
        """
        if not self._slots:
            return True
        now = self._clock.now()
        leaves_at = next_slot(begun=begun, now=now, length_s=self._slot_s)
        closes_first = now < self._closes_at < leaves_at
        self._clock.sleep((self._closes_at if closes_first else leaves_at) - now)
        return leaves_at < self._closes_at

    def _give_up(self, offer: RoundOffer, entry: Entry, attempt: int | None) -> None:
        """Free the reservation of an update that was not sent. Decline if the coordinator still waits for it."""
        self._journal.free(self._api.task_id, entry.release)
        reason = "closed before the update was ready; nothing was sent"
        # A later attempt is announced in its turn: the client then trains again.
        late = NoBid(reason, DeclineCode.TOO_LATE if attempt == offer.attempt else None)
        self._decline(offer, late)

    def _train(self, model: Vector32, entry: Entry) -> bytes:
        with self._context.training:
            vector = self._learner.release(
                privacy=self._spec.privacy,
                model=model,
                rho=entry.rho if self._spec.privacy.noise else None,
                noise=self._noise,
                name=self._context.noise_name(entry.release, spec_digest=self._spec_digest),
            )
        return encode(vector)

    def _open_attempt(self, round_number: int) -> int | None:
        return self._context.open_rounds.attempt(self._api, round_number)

    def _send_again(self, round_number: int, *, last_chance: bool = False) -> bool:
        """Send the bytes of the journal, also a second time. Returns whether the coordinator has them."""
        release = release_of(round_number)
        payload = self._journal.payload(self._api.task_id, release)
        entry = self._journal.entry(self._api.task_id, release)
        assert payload is not None and entry is not None and entry.digest is not None
        return self._send(round_number, payload, digest=entry.digest, rho=entry.rho, last_chance=last_chance)

    def _send(self, round_number: int, payload: bytes, *, digest: str, rho: float, last_chance: bool = False) -> bool:
        """Send bytes that the journal has. Returns whether the coordinator has them."""
        release = release_of(round_number)
        try:
            receipt = self._api.upload(round_number, payload, digest=digest)
        except (RoundClosed, Conflict, Refused) as error:
            self._report(f"round {round_number}: the coordinator refused the update: {error}")
            # A round that opens again accepts the same bytes: keep them until the round is over.
            if last_chance or not isinstance(error, RoundClosed):
                self._journal.mark_unpaid(self._api.task_id, release)
            return False
        failpoint("client.sent")
        if receipt.digest != digest:
            raise UntrustedCoordinator(f"the receipt of round {round_number} is for other bytes")
        self._receipts.keep(receipt, round_number=round_number)
        self._journal.acknowledge(self._api.task_id, release)
        self._report(f"round {round_number}: delivered at rho {rho:.4g}")
        return True

    # --- after a round -----------------------------------------------------------------------------------------------

    def _settle_accounts(self, news: Announcement, *, before: int | None, is_final: bool = True) -> None:
        """Finish the rounds before `before`, or all if None: send again, free reservations, read payments.

        Unless this `is_final`, the bytes of a closed round stay in the journal.
        """
        for entry in self._journal.unfinished(self._api.task_id):
            number = round_of(entry.release)
            if number is None or (before is not None and number >= before):
                continue
            if entry.state is SpendState.RESERVED:
                self._journal.free(self._api.task_id, entry.release)
            elif entry.state is SpendState.SPENT and not entry.acknowledged:
                self._find_receipt(entry, number, news, is_final=is_final)
            elif entry.state is SpendState.SPENT and entry.payment_micro is None:
                self._read_payment(entry, number, news)

    def _find_receipt(self, entry: Entry, round_number: int, news: Announcement, *, is_final: bool) -> None:
        """Get the receipt of bytes that were about to leave, or left, before their round closed.

        The bytes are sent again only if the coordinator has them already, or if the round is open. Otherwise they may
        never have left this machine, and a late update is a release without payment. The budget stays charged.
        """
        result = self._result(round_number, news)
        if result.state is not RoundState.OPEN and (result.own is None or not result.own.delivered):
            self._report(f"round {round_number}: closed without the update; its budget stays charged")
            if is_final:
                self._journal.mark_unpaid(self._api.task_id, release_of(round_number))
        elif self._send_again(round_number, last_chance=is_final):
            self._read_payment(entry, round_number, news)

    def _result(self, round_number: int, news: Announcement) -> RoundResult:
        result = news.last_result
        return result if result is not None and result.round_number == round_number else self._api.round(round_number)

    def _read_payment(self, entry: Entry, round_number: int, news: Announcement) -> None:
        result = self._result(round_number, news)
        if result.state is RoundState.OPEN:
            return
        self._receipts.keep(result, round_number=round_number)
        part = result.own
        payment = 0 if part is None else part.payment_micro
        accepted = part is not None and part.accepted
        announced = self._journal.offer(self._api.task_id, round_number)
        check_result(result=result, announced=announced, spec=self._spec, rho=entry.rho)
        self._journal.pay(self._api.task_id, release_of(round_number), payment, accepted=accepted)
        spent = self._context.account(self._spec).spent_rho
        accuracy = "" if result.accuracy is None else f"; accuracy {result.accuracy:.1%}"
        self._report(f"round {round_number}: paid {from_micro(payment):.6f}; spent rho {spent:.4g} so far{accuracy}")
