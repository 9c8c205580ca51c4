"""The plan of a fleet: the identities, journals, privacy values and behaviours of its members."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from qidpfl_shared.protocol.task_spec import TaskSpec

from ..journal.fleet_journals import open_journals
from ..journal.journal import Journal
from ..noise import CommonNoise, NoiseSource, SystemNoise, UnsafeSeededNoise
from ..owner import Owner, draw_privacy_value
from ..participant.data_source import DataSource, OpenData
from ..participant.open_rounds import OpenRounds
from ..participant.runner import SHORT_RETRIES, ReconnectPolicy
from ..participant.session import ClientContext, Enrolment
from ..sdk.client import ModelCache, TaskApi
from ..sdk.credentials import split_code
from .behaviours import UNDERSTATED, Behaviour, UnreliableDelivery, assign, behaving_data, behaving_owner
from .fleet import Member
from .turn import Trainings, Turn

Report = Callable[[str], None]
# How long the members share the answer that a round takes updates. It is short compared with the time of a round.
_SHARED_CHECK_S = 0.25


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """How many members, and how they differ. The same seed gives the same members, except for their noise.

    `ordinals` are the members that this process plays; None: all of them. The journals of a part are in a folder of
    their own, so that parts on a shared disk have separate logs.
    """

    clients: int
    ordinals: range | None = None
    codes: tuple[str, ...]
    owner: Owner
    journals: Path
    privacy_value: str
    shares: Mapping[Behaviour, float]
    # What a misreporter multiplies its privacy value with.
    misreport: float = UNDERSTATED
    dropout: float = 0.0
    # Whether a member that drops out says nothing, so that the round waits for it.
    silent_dropout: bool = False
    delay_up_to_s: float = 0.0
    seed: int = 0
    unsafe_seed: int | None = None
    # With a seed: the noise of this draw, the same in all tasks.
    common_draw: int | None = None
    patience_s: float = 600.0
    first_contact_s: float = 10.0
    # How many members train at the same time: each needs a core, and memory for a network.
    trainings: int = 1

    @property
    def played(self) -> range:
        """The ordinals of the members that this process plays."""
        return range(self.clients) if self.ordinals is None else self.ordinals

    def api(self, http: httpx.Client) -> TaskApi:
        """A connection to the task, for one member or for the watcher."""
        return TaskApi(http, task_id=split_code(self.codes[0])[0], retries=SHORT_RETRIES)

    @property
    def has_enrolled(self) -> bool:
        """Whether an earlier run of this fleet has left journals: it then continues with its places."""
        return any(self._path(ordinal).exists() for ordinal in self.played)

    @contextmanager
    def members(self, http: httpx.Client, open_data: OpenData, report: Report, *, turn: Turn) -> Iterator[list[Member]]:
        """The members that this process plays, with open journals. `turn` is what they hold while they compute."""
        behaviours = assign(clients=self.clients, shares=self.shares, seed=self.seed)
        common = _Common(
            http=http,
            open_data=_opened_once(open_data),
            models=ModelCache(waiting=turn.waiting),
            open_rounds=OpenRounds(shared_s=_SHARED_CHECK_S),
            training=Trainings(turn, at_once=self.trainings),
            report=report,
        )
        paths = [self._path(ordinal) for ordinal in self.played]
        with ExitStack() as opened:
            journals = opened.enter_context(open_journals(paths, waiting=turn.waiting))
            for journal in journals:
                # A limit above that of a journal stops the fleet before the first member starts.
                journal.limits.of_run(self.owner.lifetime_rho)
            yield [
                self._member(ordinal, behaviours[ordinal], journal, common)
                for ordinal, journal in zip(self.played, journals, strict=True)
            ]

    def _member(self, ordinal: int, behaviour: Behaviour, journal: Journal, common: "_Common") -> Member:
        def say(line: str) -> None:
            common.report(f"{ordinal:>4} {'' if behaviour is Behaviour.HONEST else f'({behaviour}) '}{line}")

        drawn = draw_privacy_value(self.privacy_value, random.Random(f"{self.seed}/{ordinal}"))
        owner = replace(self.owner, privacy_value=drawn)
        context = ClientContext(
            api=self.api(common.http),
            journal=journal,
            owner=behaving_owner(owner, behaviour, misreport=self.misreport),
            noise=self._noise(ordinal),
            report=say,
            models=common.models,
            open_rounds=common.open_rounds,
            training=common.training,
        )
        return Member(
            enrolment=Enrolment(
                context=context,
                # Each member begins with another code, so that few find theirs used.
                codes=self.codes[(start := ordinal % len(self.codes)) :] + self.codes[:start],
                open_data=behaving_data(common.open_data, behaviour),
                ordinal=ordinal,
                # The other parts of a fleet need the other places.
                any_ordinal=self.ordinals is None,
            ),
            reconnect=ReconnectPolicy(patience_s=self.patience_s, first_contact_s=self.first_contact_s, report=say),
            delivery=UnreliableDelivery(
                dropout=self.dropout,
                silent=self.silent_dropout,
                delay_up_to_s=self.delay_up_to_s,
                seed=self.seed,
                ordinal=ordinal,
            ),
        )

    def _noise(self, ordinal: int) -> NoiseSource:
        """A separate source for each member: system entropy, or a seed if the fleet is in test mode."""
        if self.unsafe_seed is None:
            return SystemNoise()
        if self.common_draw is not None:
            return CommonNoise(seed=self.unsafe_seed, draw=self.common_draw, ordinal=ordinal)
        return UnsafeSeededNoise(random.Random(f"{self.unsafe_seed}/{ordinal}").getrandbits(63))

    def _path(self, ordinal: int) -> Path:
        folder = self.journals
        if self.ordinals is not None:
            folder = folder / f"ordinals-{self.ordinals[0]}-{self.ordinals[-1]}"
        return folder / f"client-{ordinal:05d}.sqlite"


@dataclass(frozen=True, kw_only=True)
class _Common:
    """What all members share."""

    http: httpx.Client
    open_data: OpenData
    models: ModelCache
    open_rounds: OpenRounds
    training: Trainings
    report: Report


def _opened_once(open_data: OpenData) -> OpenData:
    """Opens the data of a task once for all members."""
    opened: dict[str, DataSource] = {}
    lock = threading.Lock()

    def open_once(spec: TaskSpec) -> DataSource:
        with lock:
            if spec.digest not in opened:
                opened[spec.digest] = open_data(spec)
            return opened[spec.digest]

    return open_once
