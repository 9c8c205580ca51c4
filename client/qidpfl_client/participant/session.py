"""Joining a task: read it, enrol, store the profile; or continue as the client that the journal knows.

The client checks the owner's limits, the data and the network before it enrols. A client that cannot take part
therefore leaves nothing behind on the coordinator.
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
from ..journal.journal import Entry, Journal, Membership, histogram_entry, round_entry
from ..noise import NoiseSource
from ..owner import Owner
from ..sdk.client import ModelCache, TaskApi
from .data_source import DataSource, Learner, OpenData
from .profile import check_presentable, make_profile
from .verification import check_acceptable, check_spec

Report = Callable[[str], None]
_SENT = (SpendState.SPENT, SpendState.SPENT_UNPAID)


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """What a client has for the whole task: its connection, journal, owner and noise."""

    api: TaskApi
    journal: Journal
    owner: Owner
    noise: NoiseSource
    report: Report
    models: ModelCache = field(default_factory=ModelCache)

    def account(self, spec: TaskSpec) -> PrivacyAccount:
        """What the data set has released so far, under the owner's limit."""
        return self.journal.account(
            lifetime_rho=self.owner.lifetime_limit(spec.privacy.lifetime_rho),
            accept_unproven=self.owner.accept_unproven,
        )


@dataclass(frozen=True, kw_only=True)
class TaskSession:
    """A client's place in a task: the agreed spec and profile, and the records to learn from."""

    spec: TaskSpec
    ordinal: int
    profile: Profile
    learner: Learner


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """Joins one task with an enrolment code.

    `ordinal` is the wanted place in a testbed. `moved` allows the coordinator to have another address than before.
    """

    context: ClientContext
    code: str
    open_data: OpenData
    ordinal: int | None = None
    moved: bool = False

    def join(self) -> TaskSession:
        """Join the task. The caller may repeat this after any failure."""
        context = self.context
        membership = self._known_membership() or self._read_task()
        spec = TaskSpec.model_validate_json(membership.spec)
        data = self._checked_data(membership, spec)
        limit = context.account(spec).lifetime_rho
        membership = replace(membership, lifetime_rho=None if math.isinf(limit) else limit, server=context.api.server)
        context.journal.save_membership(membership)
        membership = self._enrolled(membership)
        assert membership.ordinal is not None
        if membership.profile is None:
            learner = self._make_profile(membership, spec, data)
        else:
            learner = data.learner(membership.ordinal)
            self._reconcile(spec, learner.size)
        profile = self._send_profile()
        context.report(f"client {membership.ordinal} takes part with {learner.size} records")
        return TaskSession(spec=spec, ordinal=membership.ordinal, profile=profile, learner=learner)

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
        view = api.task(code=self.code)
        check_spec(spec=view.spec, digest=view.spec_digest)
        return Membership(
            task_id=api.task_id,
            server=api.server,
            enrolment_key=secrets.token_urlsafe(32),
            spec=view.spec.model_dump_json(),
            spec_digest=view.spec_digest,
        )

    def _checked_data(self, membership: Membership, spec: TaskSpec) -> DataSource:
        owner = self.context.owner
        check_acceptable(spec=spec, accept_unproven=owner.accept_unproven)
        if membership.profile is None:
            check_presentable(spec=spec, owner=owner, account=self.context.account(spec))
        data = self.open_data(spec)
        ordinal = membership.ordinal if membership.ordinal is not None else self.ordinal
        if ordinal is not None or spec.workload.partition is None:
            self.context.journal.check_data_set(data.learner(ordinal or 0).fingerprint)
        return data

    def _enrolled(self, membership: Membership) -> Membership:
        api = self.context.api
        if membership.token is not None:
            api.token = membership.token
            if membership.profile is None:
                self._require_no_profile()
            return membership
        answer = api.enrol(code=self.code, key=membership.enrolment_key, ordinal=self.ordinal)
        failpoint("client.enrolled")
        if answer.spec_digest != membership.spec_digest:
            raise UntrustedCoordinator("the task changed between reading it and enrolling")
        membership = replace(membership, client_id=answer.client_id, token=answer.token, ordinal=answer.ordinal)
        self.context.journal.save_membership(membership)
        return membership

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
            context.journal.bind(learner.fingerprint)
            profile = make_profile(
                spec=spec, owner=context.owner, learner=learner, noise=context.noise, account=account
            )
            context.journal.save_profile(
                replace(membership, profile=profile.model_dump_json()),
                histogram_entry(context.api.task_id, profile),
                account=account,
            )
        except Exception:
            # Leave the task: it would otherwise wait for a client that never comes.
            context.journal.forget_membership(context.api.task_id)
            context.api.leave()
            raise
        failpoint("client.profile_journaled")
        return learner

    def _send_profile(self) -> Profile:
        """Send the profile of the journal, for the first time or again."""
        membership = self.context.journal.membership(self.context.api.task_id)
        assert membership is not None and membership.profile is not None
        profile = Profile.model_validate_json(membership.profile)
        self.context.api.store_profile(profile)
        failpoint("client.profile_sent")
        return profile

    def _reconcile(self, spec: TaskSpec, size: int) -> None:
        """Charge each release that the coordinator has and the journal lacks: the file may be an older copy."""
        api = self.context.api
        for theirs in api.ledger().entries:
            if theirs.state in _SENT and theirs.release != HISTOGRAM:
                entry = _foreign_entry(api.task_id, spec, size, theirs)
                if self.context.journal.record_foreign(entry):
                    self.context.report(
                        f"{theirs.release}: the coordinator already has this release; the client does not repeat it"
                    )


def _foreign_entry(task_id: str, spec: TaskSpec, size: int, theirs: LedgerEntry) -> Entry:
    """A release that the coordinator reports. The client computes what the mechanism guarantees by itself."""
    number = round_of(theirs.release)
    if number is None or theirs.digest is None or (spec.privacy.noise and theirs.rho == 0):
        raise UntrustedCoordinator(f"the coordinator's ledger shows {theirs.release!r}, which no client releases")
    entry = round_entry(task_id=task_id, spec=spec, round_number=number, rho=theirs.rho, size=size)
    return replace(entry, state=SpendState.SPENT, digest=theirs.digest, acknowledged=True)
