"""Joining a task: read it, enrol, store the profile; or continue as the client that the journal knows.

The client checks the owner's limits, the data and the network before it enrols. A client that cannot take part
therefore leaves nothing behind on the coordinator.
"""

import json
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import LedgerEntry, SpendState
from qidpfl_shared.protocol.messages import EnrolAnswer, Profile
from qidpfl_shared.protocol.releases import HISTOGRAM, round_of
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import Conflict, JournalError, Misconfigured, Unauthenticated, UntrustedCoordinator
from ..journal.entries import RecordsVersion
from ..journal.journal import Journal, Membership, histogram_entry
from ..journal.limits import finite
from ..noise import CommonNoise, NoiseSource
from ..owner import Owner, lowered
from ..sdk.client import ModelCache, TaskApi
from ..sdk.credentials import enrolment_code_in_words
from .data_source import DataSource, Learner, OpenData
from .open_rounds import OpenRounds
from .profile import check_learner, check_presentable, histogram_in_words, make_profile
from .receipts import ReceiptKeeper
from .token_rotation import settle_token
from .verification import (
    check_acceptable,
    check_claim,
    check_common_noise,
    check_device,
    check_spec,
    refusal_of_claim,
)
from .waiting import Countdown, no_countdown

Report = Callable[[str], None]
_SENT = (SpendState.SPENT, SpendState.SPENT_UNPAID)
# A sum of budgets may exceed the limit by its rounding.
_ROUNDING = 1e-9
# How often a client enrols again: as often as the SDK may have sent the first enrolment.
_ENROLMENTS = 5


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """What a client has for the whole task: its connection, journal, owner and noise."""

    api: TaskApi
    journal: Journal
    owner: Owner
    noise: NoiseSource
    report: Report
    # Shows what the client waits for, with the seconds that are left.
    countdown: Countdown = no_countdown
    models: ModelCache = field(default_factory=ModelCache)
    open_rounds: OpenRounds = field(default_factory=OpenRounds)
    # Limits how many members of a fleet train at the same time.
    training: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def receipts(self) -> ReceiptKeeper:
        """Checks and keeps what the coordinator signs."""
        return ReceiptKeeper(api=self.api, kept=self.journal.receipts)

    @property
    def common_noise(self) -> bool:
        """Whether other tasks get the same noise, so that no release is protected."""
        return isinstance(self.noise, CommonNoise)

    def noise_name(self, release: str, *, spec_digest: str) -> str:
        """The name of the noise of a release: that of another task is other noise, except under common noise."""
        return release if self.common_noise else f"{spec_digest}/{release}"

    def account(self, spec: TaskSpec) -> PrivacyAccount:
        """What the data set has released so far, under the owner's limit. The task can only lower that limit."""
        return self.journal.account(
            lifetime_rho=lowered(self.lifetime_rho, spec.privacy.lifetime_rho),
            accept_unproven=self.owner.accept_unproven,
        )

    @property
    def lifetime_rho(self) -> float:
        """The lifetime limit of this run: that of the journal, or a lower one of the owner."""
        return self.journal.limits.of_run(self.owner.lifetime_rho)


@dataclass(frozen=True, kw_only=True)
class TaskSession:
    """A client's place in a task: the agreed spec and profile, and the records to learn from."""

    spec: TaskSpec
    ordinal: int
    profile: Profile
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """Joins one task with the first of the enrolment `codes` that is free, or without one with the certificate.

    `ordinal` is the wanted place in a testbed; with `any_ordinal` another one will do if it is taken. `moved` allows
    the coordinator to have another address than before. `check_only` ends the program once all checks have passed,
    before anything is stored or sent.
    """

    context: ClientContext
    codes: tuple[str, ...]
    open_data: OpenData
    ordinal: int | None = None
    any_ordinal: bool = False
    moved: bool = False
    check_only: bool = False

    def join(self) -> TaskSession:
        """Join the task. The caller may repeat this after any failure.

        A delayed duplicate of the enrolment may replace the token before its first use: then the client enrols again.
        """
        for _ in range(_ENROLMENTS):
            try:
                return self._join()
            except Unauthenticated:
                if not self._has_enrolled_again():
                    raise
        return self._join()

    def _join(self) -> TaskSession:
        context = self.context
        membership = self._known_membership() or self._read_task()
        spec = TaskSpec.read(membership.spec)
        data = self._checked_data(membership, spec)
        if self.check_only:
            self._end_of_checks(membership, data)
        limit = context.account(spec).lifetime_rho
        membership = replace(membership, lifetime_rho=finite(limit), server=context.api.server)
        context.journal.limits.keep_first(context.owner.lifetime_rho)
        self._free_other_tasks()
        context.journal.save_membership(membership)
        membership = self._enrolled(membership)
        assert membership.ordinal is not None
        if membership.profile is None:
            learner = self._make_profile(membership, spec, data)
        else:
            learner = data.learner(membership.ordinal)
            self._bind(learner)
            self._reconcile()
            self._free_excess(spec)
        profile = self._send_profile()
        context.report(f"client {membership.ordinal} takes part with {learner.size} records")
        self._report_short_budget(spec)
        return TaskSession(spec=spec, ordinal=membership.ordinal, profile=profile, learner=learner)

    def _end_of_checks(self, membership: Membership, data: DataSource) -> NoReturn:
        """Say what joining would say of the journal, and stop."""
        ordinal, context = membership.ordinal if membership.ordinal is not None else self.ordinal, self.context
        learner, known = data.learner(ordinal or 0), context.journal.records()
        if known and known[-1].fingerprint != learner.fingerprint:
            self._report_change(known[-1], learner)
        context.report(
            f"checked only, against {context.journal.path} too: nothing was sent; start again without --check-only to"
            " take part"
        )
        raise SystemExit(0)

    def _report_short_budget(self, spec: TaskSpec) -> None:
        """Say at the start if the owner's limits end before the task does."""
        left, cap = self.context.account(spec).remaining_rho, lowered(self.context.owner.rho_cap, spec.bounds.rho_max)
        if spec.privacy.noise and left < cap * spec.game.horizon:
            self.context.report(
                f"the limits leave rho {left:.3g}: enough for {int(left / cap)} rounds at the cap of rho {cap:.3g}; the"
                f" task has up to {spec.game.horizon}"
            )

    def _known_membership(self) -> Membership | None:
        """What the journal knows of the task. The client sends its token only to the address that it knows."""
        api = self.context.api
        known = self.context.journal.membership(api.task_id)
        if known is not None and known.server != api.server and not self.moved:
            raise Misconfigured(
                f"the journal knows this task at {known.server}: add --moved if the coordinator has a new address"
            )
        return known

    def _read_task(self) -> Membership:
        api = self.context.api
        with enrolment_code_in_words() if self.codes else nullcontext():
            view = api.task(code=self.codes[0] if self.codes else None)
        check_spec(spec=view.spec, digest=view.spec_digest)
        return Membership(
            task_id=api.task_id,
            server=api.server,
            enrolment_key=secrets.token_urlsafe(32),
            # With fields that this version does not know: the digest covers them.
            spec=json.dumps(view.spec.facts(), separators=(",", ":")),
            spec_digest=view.spec_digest,
        )

    def _checked_data(self, membership: Membership, spec: TaskSpec) -> DataSource:
        owner = self.context.owner
        check_acceptable(spec=spec, accept_unproven=owner.accept_unproven)
        if self.context.common_noise:
            check_common_noise(spec=spec, accept_unproven=owner.accept_unproven)
        if membership.profile is None:
            check_presentable(spec=spec, owner=owner, account=self.context.account(spec))
        data = self.open_data(spec)
        check_device(device_type=data.device_type, accept_unproven=owner.accept_unproven)
        check_claim(claimed=data.claimed, accept_unproven=owner.accept_unproven)
        ordinal = membership.ordinal if membership.ordinal is not None else self.ordinal
        if ordinal is not None or spec.workload.partition is None:
            check_learner(membership, spec, data.learner(ordinal or 0))
        return data

    def _enrolled(self, membership: Membership) -> Membership:
        api = self.context.api
        if membership.token is not None:
            membership = settle_token(api, self.context.journal)
            if membership.profile is None:
                self._require_no_profile()
            return membership
        try:
            return self._enrol(membership, self.ordinal)
        except Conflict as error:
            if error.code is not ErrorCode.ORDINAL_TAKEN or not self.any_ordinal:
                raise
            # Another client has this place: take the next free one.
            return self._enrol(membership, None)

    def _has_enrolled_again(self) -> bool:
        """Get a fresh token with the same key. Without effect once a round was answered: then a profile was stored."""
        journal, task_id = self.context.journal, self.context.api.task_id
        known = journal.membership(task_id)
        if known is None or known.token is None or any(round_of(one.release) for one in journal.entries(task_id)):
            return False
        try:
            self._enrol(known, known.ordinal)
        except (Conflict, Unauthenticated):
            # The coordinator has the profile, and the token was revoked.
            return False
        return True

    def _enrol(self, membership: Membership, ordinal: int | None) -> Membership:
        if self.codes:
            answer = self._enrol_with_free_code(membership.enrolment_key, ordinal)
        else:
            answer = self.context.api.enrol_with_certificate(ordinal=ordinal)
        failpoint("client.enrolled")
        if answer.spec_digest != membership.spec_digest:
            raise UntrustedCoordinator("the task changed between reading it and enrolling")
        self.context.receipts.pin(answer.public_key)
        self.context.receipts.keep(answer)
        membership = replace(
            membership, client_id=answer.client_id, token=answer.token, ordinal=answer.ordinal, next_token=None
        )
        self.context.journal.save_membership(membership)
        return membership

    def _enrol_with_free_code(self, key: str, ordinal: int | None) -> EnrolAnswer:
        """Enrol with the first code that is free. A repeat with the same key finds its client by any of the codes."""
        for code in self.codes[:-1]:
            try:
                return self.context.api.enrol(code=code, key=key, ordinal=ordinal)
            except Conflict as error:
                if error.code is not ErrorCode.CODE_USED:
                    raise
        with enrolment_code_in_words():
            return self.context.api.enrol(code=self.codes[-1], key=key, ordinal=ordinal)

    def _require_no_profile(self) -> None:
        """Refuse to make a second profile where the coordinator already has one that the journal does not know."""
        if any(theirs.release == HISTOGRAM for theirs in self.context.api.ledger().entries):
            raise JournalError(
                f"{self.context.journal.path} is an older copy: it does not know the profile that the coordinator has"
            )

    def _make_profile(self, membership: Membership, spec: TaskSpec, data: DataSource) -> Learner:
        """Make the profile, and charge its histogram. This sends nothing yet."""
        assert membership.ordinal is not None
        context, account = self.context, self.context.account(spec)
        try:
            learner = data.learner(membership.ordinal)
            self._bind(learner)
            profile = make_profile(spec=spec, owner=context.owner, learner=learner, noise=context.noise)
            context.journal.save_profile(
                replace(membership, profile=profile.model_dump_json(), fingerprint=learner.fingerprint),
                histogram_entry(context.api.task_id, profile, common_noise=context.common_noise),
                account=account,
            )
        except Exception:
            # Leave the task: it would otherwise wait for a client that never comes.
            context.journal.forget_membership(context.api.task_id)
            context.api.leave()
            raise
        context.report(histogram_in_words(profile, labels=spec.workload.labels))
        failpoint("client.profile_journaled")
        return learner

    def _bind(self, learner: Learner) -> None:
        """Tell the journal which records are used. Changed records continue the same account."""
        earlier = self.context.journal.bind(learner.fingerprint, learner.size)
        if earlier is not None:
            self._report_change(earlier, learner)

    def _report_change(self, earlier: RecordsVersion, learner: Learner) -> None:
        then = "" if earlier.size is None else f" ({earlier.size} then, {learner.size} now)"
        self.context.report(
            f"the records have changed since this journal was last used{then}: all of them count as having spent"
            f" what the journal has spent, rho {self.context.journal.account().spent_rho:.4g}; if these are another"
            " owner's records, use another --journal"
        )

    def _send_profile(self) -> Profile:
        """Send the profile of the journal, for the first time or again."""
        membership = self.context.journal.membership(self.context.api.task_id)
        assert membership is not None and membership.profile is not None
        profile = Profile.model_validate_json(membership.profile)
        receipt = self.context.api.store_profile(profile)
        failpoint("client.profile_sent")
        if receipt is not None:
            self.context.receipts.keep(receipt)
        return profile

    def _reconcile(self) -> None:
        """Compare the coordinator's ledger with the journal. Only a release of this journal is accepted.

        The journal may be an older copy, which lacks releases. The coordinator may invent them. The client cannot tell
        which, so it stops and charges nothing.
        """
        claims = [entry for entry in self.context.api.ledger().entries if entry.state in _SENT]
        rounds = [claim for claim in claims if claim.release != HISTOGRAM]
        for claim in rounds:
            self._check_claim(claim)
        for claim in rounds:
            self._mark_sent(claim)
            self._mark_resumed(claim)

    def _check_claim(self, claim: LedgerEntry) -> None:
        journal, task_id = self.context.journal, self.context.api.task_id
        refusal = refusal_of_claim(claim, journal.entry(task_id, claim.release))
        # Earlier versions of the client charged other bytes of a round under this name.
        if refusal is None or journal.entry(task_id, f"{claim.release}/{claim.digest}") is not None:
            return
        raise UntrustedCoordinator(
            f"the coordinator's ledger shows {claim.release} at rho {claim.rho:g}, {refusal}; nothing was charged."
            f" Either {journal.path} is an older copy: use the newest one."
            " Or the coordinator invents releases: leave the task"
        )

    def _mark_sent(self, claim: LedgerEntry) -> None:
        """Mark a reserved release as spent if the coordinator has it. It is already counted."""
        journal, task_id = self.context.journal, self.context.api.task_id
        known = journal.entry(task_id, claim.release)
        if known is not None and known.state is SpendState.RESERVED and claim.digest is not None:
            journal.mark_sent(task_id, claim.release, digest=claim.digest)
            self.context.report(
                f"{claim.release}: the coordinator already has this release; the client does not repeat it"
            )

    def _mark_resumed(self, claim: LedgerEntry) -> None:
        """Expect the payment of a round that was void when its task failed, and that was settled after a resume."""
        journal, task_id = self.context.journal, self.context.api.task_id
        known = journal.entry(task_id, claim.release)
        is_unpaid = known is not None and known.state is SpendState.SPENT_UNPAID and known.digest == claim.digest
        if is_unpaid and claim.state is SpendState.SPENT:
            journal.expect_payment(task_id, claim.release)
            self.context.report(f"{claim.release}: the coordinator has settled this round again")

    def _free_other_tasks(self) -> None:
        """Cancel the reservations of other tasks. No update was sent for them: that would have spent them."""
        context = self.context
        for entry in context.journal.entries():
            if entry.state is SpendState.RESERVED and entry.task_id != context.api.task_id:
                context.journal.free(entry.task_id, entry.release)
                context.report(
                    f"{entry.release} of task {entry.task_id} was never sent: rho {entry.rho:.4g} is free again"
                )

    def _free_excess(self, spec: TaskSpec) -> None:
        """Cancel reservations above the limits of this run, which may be lower than those of the last one."""
        context, task_id = self.context, self.context.api.task_id
        for entry in context.journal.entries(task_id):
            account = context.account(spec)
            over_lifetime = account.limited and account.spent_rho > account.lifetime_rho * (1 + _ROUNDING)
            if entry.state is SpendState.RESERVED and (over_lifetime or entry.rho > context.owner.rho_cap):
                context.journal.free(task_id, entry.release)
                context.report(f"{entry.release}: rho {entry.rho:.4g} is above the limits of this run; nothing is sent")
