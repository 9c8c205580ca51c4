"""The clients' answers to an announcement: a budget, a place without one, or a decline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import BudgetReceipt, BudgetRequest, Declaration, Decline
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..clock import Micros, as_datetime
from ..domain import Budget, BudgetState, Client, Task
from ..errors import RequestRefused
from ..store.transaction import Transaction
from .desk import Desk, wake_when_complete
from .lifecycle import get_task_for_update
from .planning import participant, privacy_accounts

# Rounding of a sum of budgets, relatively.
_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class BudgetAnswer:
    """What a client answers, and when."""

    client_id: str
    request: BudgetRequest
    at: Micros


def declare(
    tx: Transaction, task_id: str, round_number: int, answers: Sequence[BudgetAnswer]
) -> list[BudgetReceipt | Exception]:
    """Record answers to an announcement. A repeat gets its first receipt, whatever became of the round."""
    counter = _Counter(tx, get_task_for_update(tx, task_id), round_number, answers)
    outcomes: list[BudgetReceipt | Exception] = []
    for answer in answers:
        try:
            outcomes.append(counter.receipt(answer))
        except RequestRefused as refusal:
            outcomes.append(refusal)
    counter.record()
    return outcomes


class _Counter:
    """Serves answers one after the other, each after what the others before it have left."""

    def __init__(self, tx: Transaction, task: Task, round_number: int, answers: Sequence[BudgetAnswer]) -> None:
        client_ids = {answer.client_id for answer in answers}
        self._tx = tx
        self._desk = Desk(tx, task, round_number, client_ids)
        self._clients = tx.clients.some(client_ids)
        self._accounts = privacy_accounts(tx, task, list(self._clients.values()))
        self._rules = task.spec.round_rules()
        self._new: dict[str, Budget] = {}

    def receipt(self, answer: BudgetAnswer) -> BudgetReceipt:
        """The receipt of an answer: the first one of a known answer, a new one where it may be taken."""
        desk, client = self._desk, self._clients.get(answer.client_id)
        if client is None:
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        wanted = _budget_of(desk.task.spec, answer)
        known = desk.budgets.get(client.client_id)
        if known is not None and _same_answer(known, wanted):
            return _receipt(desk.round_number, known)
        round_ = desk.open_round()
        desk.require_invitation(client.client_id)
        if known is not None:
            wanted = self._taken_back(known, wanted)
        elif answer.at > round_.declare_by:
            raise RequestRefused(ErrorCode.ROUND_CLOSED, "the time to declare a budget is over")
        if wanted.state is BudgetState.DECLARED:
            self._require_affordable(client, wanted.rho)
        desk.budgets[client.client_id] = self._new[client.client_id] = wanted
        return _receipt(desk.round_number, wanted)

    def record(self) -> None:
        """Write down every new answer."""
        if not self._new:
            return
        round_ = self._desk.open_round()
        self._tx.rounds.put_budget(round_, *self._new.values())
        wake_when_complete(self._tx, round_, max(budget.recorded_at for budget in self._new.values()))
        for _ in self._new:
            failpoint("declare.before_commit")

    def _taken_back(self, known: Budget, wanted: Budget) -> Budget:
        """The decline that may follow a declaration, as long as nothing was delivered."""
        if not (known.state is BudgetState.DECLARED and wanted.state is BudgetState.DECLINED):
            raise RequestRefused(ErrorCode.BUDGET_DECLARED, f"the answer is already {known.state}")
        if known.client_id in self._desk.updates:
            raise RequestRefused(ErrorCode.UPDATE_EXISTS, "the update is already stored: its budget is spent")
        return replace(wanted, rho=known.rho)

    def _require_affordable(self, client: Client, rho: float) -> None:
        smallest = self._desk.task.spec.bounds.rho_min
        largest = self._rules.cap(participant(client, self._accounts[client.client_id]))
        if not smallest * (1 - _TOLERANCE) <= rho <= largest * (1 + _TOLERANCE):
            raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"rho must lie in [{smallest!r}, {largest!r}] in this round")


def _budget_of(spec: TaskSpec, answer: BudgetAnswer) -> Budget:
    request = answer.request
    if isinstance(request, Decline):
        state, rho, reason = BudgetState.DECLINED, 0.0, request.reason
    elif (spec.game.policy == RewardPolicy.NONE) == isinstance(request, Declaration):
        expected = "{join: true}" if spec.game.policy == RewardPolicy.NONE else "{rho: ...}"
        raise RequestRefused(ErrorCode.OUT_OF_BOUNDS, f"under policy {spec.game.policy} the answer is {expected}")
    elif isinstance(request, Declaration):
        state, rho, reason = BudgetState.DECLARED, request.rho, None
    else:
        state, rho, reason = BudgetState.JOINED, 0.0, None
    return Budget(client_id=answer.client_id, state=state, rho=rho, reason=reason, recorded_at=answer.at)


def _same_answer(known: Budget, wanted: Budget) -> bool:
    if known.state is not wanted.state:
        return False
    return known.state is BudgetState.DECLINED or known.rho == wanted.rho


def _receipt(round_number: int, budget: Budget) -> BudgetReceipt:
    return BudgetReceipt(
        round_number=round_number,
        state=budget.state.value,
        rho=budget.rho if budget.rho > 0 else None,
        recorded_at=as_datetime(budget.recorded_at),
    )
