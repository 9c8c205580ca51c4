"""Tasks and clients that call the use cases of the server directly: a store and a clock, no HTTP and no process."""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import numpy as np

from qidpfl_server.audit import audit
from qidpfl_server.domain import Client, Round, Task
from qidpfl_server.plugins.rules import NO_RULES, RuleRegistry
from qidpfl_server.service.enrolment import enrol, leave, store_profile
from qidpfl_server.service.evaluation import Evaluator
from qidpfl_server.service.rounds.deferred_evaluation import evaluate_settled
from qidpfl_server.service.rounds.planning import mark_coming_back
from qidpfl_server.service.rounds.settlement import settle_if_due
from qidpfl_server.service.rounds.submissions import (
    BudgetAnswer,
    Delivery,
    StagedDelivery,
    accept_updates,
    declare_budgets,
    find_receipts,
)
from qidpfl_server.service.tasks import create_task, save_initial_model, start_task, stop_task, task_spec
from qidpfl_server.service.views import announcement_state, ledger, round_result
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.ledger import Ledger, LedgerEntry
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    EnrolAnswer,
    EnrolRequest,
    Join,
    Profile,
    RoundOffer,
    RoundResult,
    UpdateReceipt,
)
from support.coordinators import NO_TIMEOUTS
from support.fakes import FakeClock

RHO = 0.05
EVEN = (11,) * 10
SKEWED = (110, *(0,) * 9)
Result = TypeVar("Result")


@dataclass
class UseCases:
    """A store with a clock, in which tasks are made."""

    store: Store
    clock: FakeClock
    evaluator: Evaluator | None = None
    defer_from_s: float = math.inf
    _numbers: "count[int]" = field(default_factory=count)

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        return self.store.read(work)

    def write(self, work: Callable[[Transaction], Result]) -> Result:
        return self.store.write(work)

    def task(
        self,
        *,
        name: str | None = None,
        preset: str = "digits",
        single_use_codes: int | None = 0,
        rules: RuleRegistry = NO_RULES,
        **overrides: Any,
    ) -> "ServedTask":
        """A new task that takes clients; by default its rounds close only when all clients have answered."""
        rounds = NO_TIMEOUTS | overrides.pop("rounds", {})
        spec = task_spec(preset, overrides | {"rounds": rounds}, rules)
        name, now = name or f"task-{next(self._numbers)}", self.clock.now()
        model = save_initial_model(self.store.blobs, spec)
        made = self.write(
            lambda tx: create_task(
                tx, name=name, preset_name=preset, spec=spec, model=model, now=now, single_use_codes=single_use_codes
            )
        )
        return ServedTask(self, made.task.task_id, made.codes)

    def training(self, clients: int = 3, **overrides: Any) -> tuple["ServedTask", list["ServedClient"]]:
        """A task whose first round is open, and its clients."""
        task = self.task(**overrides | {"rounds": {"expected_clients": clients} | overrides.pop("rounds", {})})
        return task, [task.client() for _ in range(clients)]

    def violations(self) -> list[str]:
        """What the audit finds wrong."""
        return audit(self.store).violations


@dataclass
class ServedTask:
    """A task, by its id."""

    cases: UseCases
    task_id: str
    codes: tuple[str, ...]
    _numbers: "count[int]" = field(default_factory=count)

    def stranger(self, **changes: Any) -> "ServedClient":
        """A client that has not enrolled yet."""
        return ServedClient(self, code=self.codes[0], key=f"{self.task_id}-key-{next(self._numbers)}", **changes)

    def client(self, **changes: Any) -> "ServedClient":
        """A client that has enrolled and sent its profile."""
        client = self.stranger(**changes)
        client.enrol()
        client.send_profile()
        return client

    def start(self) -> None:
        now = self.cases.clock.now()
        self.cases.write(lambda tx: start_task(tx, self.task_id, now))

    def stop(self) -> None:
        stop_task(self.cases.store, self.task_id, self.cases.evaluator, self.cases.clock.now())

    def settle(self) -> bool:
        """Settle the open round if it is due now."""
        closed = settle_if_due(
            self.cases.store,
            self.task_id,
            self.cases.evaluator,
            self.cases.clock.now(),
            defer_from_s=self.cases.defer_from_s,
        )
        return closed is not None

    def evaluate(self) -> bool:
        """Evaluate the settled round that waits for it."""
        assert self.cases.evaluator is not None
        return evaluate_settled(self.cases.store, self.task_id, self.cases.evaluator, self.cases.clock.now())

    def play(self, clients: Iterable["ServedClient"], number: int = 1) -> None:
        """Let clients declare and deliver, then settle if the round is due."""
        for client in clients:
            client.play(number)
        self.settle()

    @property
    def now(self) -> Task:
        """The task as it is stored."""
        found = self.cases.read(lambda tx: tx.tasks.get(self.task_id))
        assert found is not None
        return found

    def round(self, number: int = 1) -> Round:
        found = self.cases.read(lambda tx: tx.rounds.get(self.task_id, number))
        assert found is not None
        return found

    def result(self, number: int = 1) -> RoundResult:
        return self.cases.read(lambda tx: round_result(tx, self.now, number))

    def payments(self, number: int = 1) -> dict[str, int]:
        """The amounts that were paid at once, without escrow."""
        found = self.cases.read(lambda tx: tx.payments.of_round(self.task_id, number))
        return {client_id: payment.amount_micro for client_id, payment in found.items()}

    def updates(self, number: int = 1) -> int:
        return self.cases.read(lambda tx: tx.rounds.update_count(self.task_id, number))

    def events(self) -> list[str]:
        return [event.kind for event in self.cases.read(lambda tx: tx.events.after(self.task_id, 0))]


@dataclass
class ServedClient:
    """A client without any training: what it sends is noise of the declared size."""

    task: ServedTask
    code: str
    key: str
    labels: tuple[int, ...] = EVEN
    limits: dict[str, float] = field(default_factory=dict)
    client_id: str = ""
    token: str = ""

    @property
    def cases(self) -> UseCases:
        return self.task.cases

    def enrol(self, *, code: str | None = None, ordinal: int | None = None) -> EnrolAnswer:
        request = EnrolRequest(enrolment_code=code or self.code, enrolment_key=self.key, ordinal=ordinal)
        now = self.cases.clock.now()
        answer = self.cases.write(lambda tx: enrol(tx, self.task.task_id, request, now))
        self.client_id, self.token = answer.client_id, answer.token
        return answer

    def send_profile(self, **changes: Any) -> None:
        fields: dict[str, Any] = {"label_counts": self.labels, "size": sum(self.labels), "privacy_value": 1.0}
        profile = Profile(**fields | {"histogram_rho": 0.1} | self.limits | changes)
        now = self.cases.clock.now()
        self.cases.write(lambda tx: store_profile(tx, self.client_id, profile, now))

    def leave(self) -> None:
        now = self.cases.clock.now()
        self.cases.write(lambda tx: leave(tx, self.client_id, now))

    def answer(self, request: BudgetRequest, number: int = 1) -> BudgetReceipt:
        answer = BudgetAnswer(client_id=self.client_id, request=request, at=self.cases.clock.now())
        (outcome,) = self.cases.write(lambda tx: declare_budgets(tx, self.task.task_id, number, [answer]))
        return _result_of(outcome)

    def declare(self, number: int = 1, rho: float = RHO) -> BudgetReceipt:
        return self.answer(Declaration(rho=rho), number)

    def decline(self, number: int = 1) -> BudgetReceipt:
        return self.answer(Decline(decline=True, reason="busy"), number)

    def join(self, number: int = 1) -> BudgetReceipt:
        return self.answer(Join(join=True), number)

    def update(self, number: int = 1) -> bytes:
        """Noise of the declared size; the same bytes for the same round."""
        return self.noise(RHO, number)

    def noise(self, rho: float, number: int = 1) -> bytes:
        """Noise for this budget: the same for the same round, name of the task and number of the client."""
        std = 2**0.5 / (sum(self.labels) * rho**0.5)
        task = self.task.now
        rng = np.random.default_rng([number, *f"{task.name}{self.key.removeprefix(task.task_id)}".encode()])
        noise: bytes = (std * rng.standard_normal(task.spec.dimension)).astype("<f4").tobytes()
        return noise

    def look_up(self, data: bytes, number: int = 1) -> UpdateReceipt | None:
        """What the server says before it reads the body."""
        delivery = Delivery(client_id=self.client_id, digest=_digest(data), at=self.cases.clock.now())
        (outcome,) = self.cases.read(lambda tx: find_receipts(tx, self.task.task_id, number, [delivery]))
        return None if outcome is None else _result_of(outcome)

    def upload(self, data: bytes | None = None, number: int = 1) -> UpdateReceipt:
        """Look the upload up, then store it, as the server does with a request."""
        data = self.update(number) if data is None else data
        return self.look_up(data, number) or self.deliver(data, number)[0]

    def deliver(self, data: bytes, number: int = 1) -> tuple[UpdateReceipt, set[str]]:
        """Store an upload; its receipt, and the tasks that are due then."""
        vector = np.frombuffer(data, dtype="<f4").astype(np.float64)
        with self.cases.store.blobs.stage() as blob:
            blob.write(data)
            blob.sync()
            staged = StagedDelivery(
                client_id=self.client_id,
                digest=_digest(data),
                at=self.cases.clock.now(),
                blob=blob,
                squared_norm=float(vector @ vector),
            )

            def work(tx: Transaction) -> tuple[UpdateReceipt | Exception, set[str]]:
                (outcome,) = accept_updates(tx, self.task.task_id, number, [staged])
                assert not tx.touched, "an upload changes nothing that clients wait for"
                return outcome, set(tx.due)

            outcome, due = self.cases.write(work)
            return _result_of(outcome), due

    def play(self, number: int = 1) -> None:
        self.declare(number)
        self.upload(number=number)

    def announcement(self) -> Announcement:
        """What a poll answers now; a client that was set aside comes back by it."""
        state = self.cases.read(lambda tx: announcement_state(tx, self.task.task_id))
        assert state is not None
        seen = state.announcement(self.client_id, self.cases.clock.now())
        if seen.round is not None and seen.round.standing.value == "set_aside":
            self.cases.write(lambda tx: mark_coming_back(tx, self.client_id))
        return seen

    def offer(self) -> RoundOffer:
        offer = self.announcement().round
        assert offer is not None
        return offer

    def ledger(self) -> Ledger:
        return self.cases.read(lambda tx: ledger(tx, self.client_id))

    def entry(self, number: int = 1) -> LedgerEntry:
        """The entry of one round in the client's ledger."""
        entries = self.ledger().entries
        return next(entry for entry in entries if entry.release == f"round/{number}")

    @property
    def now(self) -> Client:
        """The client as it is stored."""
        found = self.cases.read(lambda tx: tx.clients.get(self.client_id))
        assert found is not None
        return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _result_of(outcome: Result | Exception) -> Result:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
