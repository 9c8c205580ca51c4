"""Joining a task: read it, enrol, store the profile; or go on as the client that the journal knows.

Everything that may be wrong on this side (the owner's limits, the data, the network) is found before enrolling, so that
a client that cannot take part leaves nothing behind.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.messages import LedgerEntry, Profile, SpendState
from qidpfl_shared.protocol.releases import HISTOGRAM, round_of
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import JournalError, Misconfigured, UntrustedCoordinator
from ..journal.journal import Entry, Journal, Membership
from ..journal.releases import histogram_entry, round_entry
from ..noise import NoiseSource
from ..owner import Owner
from ..sdk.client import TaskApi
from ..sdk.model_cache import Models
from .data_source import DataSource, Learner, OpenData
from .profile import check_presentable, make_profile
from .verification import check_acceptable, check_spec

Report = Callable[[str], None]
_SENT = (SpendState.SPENT, SpendState.SPENT_UNPAID)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A place in a task: what was agreed, and the records to learn from."""

    spec: TaskSpec
    ordinal: int
    profile: Profile
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class Applicant:
    """Who wants to join: the owner with its data, its journal and its enrolment code."""

    api: TaskApi
    journal: Journal
    owner: Owner
    code: str
    open_data: OpenData
    noise: NoiseSource
    report: Report
    ordinal: int | None = None
    models: Models = field(default_factory=Models)
    moved: bool = False

    def take_seat(self) -> Seat:
        """Join the task. May be repeated after any failure."""
        membership = self._known() or self._read_task()
        spec = TaskSpec.model_validate_json(membership.spec)
        data = self._checked(membership, spec)
        limit = self.account(spec).lifetime_rho
        membership = replace(membership, lifetime_rho=None if math.isinf(limit) else limit, server=self.api.server)
        self.journal.save_membership(membership)
        membership = self._enrolled(membership)
        assert membership.ordinal is not None
        if membership.profile is None:
            learner = self._introduced(membership, spec, data)
        else:
            learner = data.learner(membership.ordinal)
            self._reconcile(spec, learner.size)
        profile = self._profile_sent()
        self.report(f"client {membership.ordinal} takes part with {learner.size} records")
        return Seat(spec=spec, ordinal=membership.ordinal, profile=profile, learner=learner)

    def account(self, spec: TaskSpec) -> PrivacyAccount:
        """What the data set has released so far, under the owner's limit."""
        return self.journal.account(
            lifetime_rho=self.owner.lifetime_limit(spec.privacy.lifetime_rho),
            accept_unproven=self.owner.accept_unproven,
        )

    def _known(self) -> Membership | None:
        """What the journal knows of the task. The token of one coordinator is nobody else's business."""
        known = self.journal.membership(self.api.task_id)
        if known is not None and known.server != self.api.server and not self.moved:
            raise Misconfigured(f"this journal knows the task at {known.server}: say --moved if it has moved")
        return known

    def _read_task(self) -> Membership:
        view = self.api.task(code=self.code)
        check_spec(spec=view.spec, digest=view.spec_digest)
        return Membership(
            task_id=self.api.task_id,
            server=self.api.server,
            enrolment_key=secrets.token_urlsafe(32),
            spec=view.spec.model_dump_json(),
            spec_digest=view.spec_digest,
        )

    def _checked(self, membership: Membership, spec: TaskSpec) -> DataSource:
        check_acceptable(spec=spec, accept_unproven=self.owner.accept_unproven)
        if membership.profile is None:
            check_presentable(spec=spec, owner=self.owner, account=self.account(spec))
        data = self.open_data(spec)
        place = membership.ordinal if membership.ordinal is not None else self.ordinal
        if place is not None or spec.workload.partition is None:
            self.journal.check_data_set(data.learner(place or 0).fingerprint)
        return data

    def _enrolled(self, membership: Membership) -> Membership:
        if membership.token is not None:
            self.api.token = membership.token
            if membership.profile is None:
                self._require_no_profile()
            return membership
        answer = self.api.enrol(code=self.code, key=membership.enrolment_key, ordinal=self.ordinal)
        failpoint("client.enrolled")
        if answer.spec_digest != membership.spec_digest:
            raise UntrustedCoordinator("the task changed between reading it and enrolling")
        membership = replace(membership, client_id=answer.client_id, token=answer.token, ordinal=answer.ordinal)
        self.journal.save_membership(membership)
        return membership

    def _require_no_profile(self) -> None:
        """A profile that the coordinator has, and this journal not, would be made a second time."""
        if any(theirs.release == HISTOGRAM for theirs in self.api.ledger().entries):
            raise JournalError(
                f"{self.journal.path} is an older copy: it does not know the profile that the coordinator has"
            )

    def _introduced(self, membership: Membership, spec: TaskSpec, data: DataSource) -> Learner:
        """Make the profile, and charge its histogram. Nothing leaves yet."""
        assert membership.ordinal is not None
        account = self.account(spec)
        try:
            learner = data.learner(membership.ordinal)
            self.journal.bind(learner.fingerprint)
            profile = make_profile(spec=spec, owner=self.owner, learner=learner, noise=self.noise, account=account)
            self.journal.introduce(
                replace(membership, profile=profile.model_dump_json()),
                histogram_entry(self.api.task_id, profile),
                account=account,
            )
        except Exception:
            # The place is given back: the task would wait for a client that never comes.
            self.journal.forget_membership(self.api.task_id)
            self.api.leave()
            raise
        failpoint("client.profile_journaled")
        return learner

    def _profile_sent(self) -> Profile:
        """Send the profile of the journal, for the first time or again."""
        membership = self.journal.membership(self.api.task_id)
        assert membership is not None and membership.profile is not None
        profile = Profile.model_validate_json(membership.profile)
        self.api.store_profile(profile)
        failpoint("client.profile_sent")
        return profile

    def _reconcile(self, spec: TaskSpec, size: int) -> None:
        """Charge what the coordinator has seen and this journal does not know: it may be an older copy of itself."""
        for theirs in self.api.ledger().entries:
            if theirs.state in _SENT and theirs.release != HISTOGRAM:
                entry = _foreign(self.api.task_id, spec, size, theirs)
                if self.journal.record_foreign(entry):
                    self.report(f"{theirs.release}: released already, says the coordinator; it is not made again")


def _foreign(task_id: str, spec: TaskSpec, size: int, theirs: LedgerEntry) -> Entry:
    """A release that the coordinator tells of, at what its mechanism guarantees: theirs is not taken on trust."""
    number = round_of(theirs.release)
    if number is None or theirs.digest is None or (spec.privacy.noise and theirs.rho == 0):
        raise UntrustedCoordinator(f"the coordinator's ledger shows {theirs.release!r}, which no client releases")
    entry = round_entry(task_id=task_id, spec=spec, round_number=number, rho=theirs.rho, size=size)
    return replace(entry, state=SpendState.SPENT, digest=theirs.digest, acknowledged=True)
