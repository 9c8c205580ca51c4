"""One task of the kit: what it answers to each request of the client, and the record of all requests."""

import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.core.money import split_reward
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.protocol.compatibility import spec_digest
from qidpfl_shared.protocol.errors import ErrorCode, Problem
from qidpfl_shared.protocol.evidence import profile_digest
from qidpfl_shared.protocol.messages import BudgetRequest, Declaration, Decline, EnrolRequest, Profile
from qidpfl_shared.protocol.wire import WireError, content_digest, decode, digest_of, parse_content_digest

from .exchange import ClientRequest, Refusal, ScriptedAnswer, Sent, json_answer, not_found, problem_answer
from .scenarios import UNKNOWN_FIELD, Fault, Scenario, Step, best_rho, model_bytes

RETRY_AFTER_S = 1
_DEADLINE_S = 600.0
# How many polls a client may make before the kit takes it that the client does not answer the round.
_IDLE_POLLS, _IDLE_POLLS_DECLARED, _IDLE_POLL_S = 2, 40, 0.2
_BUDGETS: TypeAdapter[Declaration | Decline | Any] = TypeAdapter(BudgetRequest)


class PlayedTask:
    """A task for one client. All methods may be called from several threads."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.spec = scenario.spec()
        self.shown_spec = self.spec.facts() | UNKNOWN_FIELD
        self.shown_spec["requires"] = [*self.shown_spec["requires"], *scenario.requires]
        shown = self.shown_spec | {"name_of_another_task": True} if scenario.digest_lie else self.shown_spec
        self.spec_digest = spec_digest(shown)
        self.task_id = secrets.token_hex(8)
        self.code = f"{self.task_id}.{secrets.token_urlsafe(24)}"
        self.sent: list[Sent] = []
        self.profile: Profile | None = None
        self.told_end = False
        self._token = secrets.token_urlsafe(30)
        self._key: str | None = None
        self._place = 0
        self._idle = 0
        self._declared: dict[int, Any] = {}
        self._delivered: dict[int, bytes] = {}
        self._troubled: set[tuple[str, tuple[int, int] | None]] = set()
        self._lock = threading.Lock()

    # --- for the checks -----------------------------------------------------------------------------------------------

    def of_kind(self, kind: str, number: int | None = None) -> list[Sent]:
        """The recorded requests of a kind, in one round or in all."""
        return [sent for sent in self.sent if sent.kind == kind and number in (None, sent.number)]

    @property
    def touched(self) -> bool:
        """Whether a client has read the task."""
        return bool(self.sent)

    @property
    def quiet_for_s(self) -> float:
        """The time since the last request."""
        return time.monotonic() - self.sent[-1].at if self.sent else 0.0

    def offered_label(self, model: int) -> int:
        """The label of which a model is certain: the rarest label of the client, or the next one."""
        counts = (0,) * self.spec.workload.labels
        if self.profile is not None and self.profile.label_counts is not None:
            counts = self.profile.label_counts
        return int(np.argsort(counts, kind="stable")[model])

    @property
    def _cost(self) -> float:
        """What a unit of budget costs the client."""
        assert self.profile is not None and self.profile.privacy_value is not None
        return self.spec.game.privacy_weight * self.profile.privacy_value

    def best(self, step: Step) -> float:
        """The best answer of this client to a step."""
        assert self.profile is not None and self.profile.privacy_value is not None
        weight = self.spec.game.privacy_weight
        return best_rho(step=step, privacy_value=self.profile.privacy_value, privacy_weight=weight)

    # --- requests -----------------------------------------------------------------------------------------------------

    def answer(self, request: ClientRequest) -> ScriptedAnswer:
        """ScriptedAnswer a request, and record it."""
        kind, handle = self._route(request)
        with self._lock:
            step = self._step if request.parts[:1] == ("rounds",) else None
            code = None
            try:
                if kind != "enrol":
                    self._authenticate(request)
                answer = handle(request)
            except Refusal as refusal:
                answer, code = problem_answer(refusal.problem), refusal.problem.code
                if kind == "update" and step is self._step:
                    # No better update will come: do not wait for it.
                    self._idle = _IDLE_POLLS_DECLARED
            except ValidationError as error:
                histogram = any(part["type"] == ErrorCode.HISTOGRAM_MISMATCH.value for part in error.errors())
                wrong = ErrorCode.HISTOGRAM_MISMATCH if histogram else ErrorCode.INVALID_REQUEST
                answer, code = problem_answer(Problem.of(wrong)), wrong.value
            self._record(kind, request, step, answer, code)
        if answer.status == 204 and kind == "poll":
            time.sleep(_IDLE_POLL_S)
        return answer

    def _record(
        self, kind: str, request: ClientRequest, step: Step | None, answer: ScriptedAnswer, code: str | None
    ) -> None:
        sent = Sent(
            kind=kind,
            number=int(request.parts[1]) if kind in ("budget", "update") else None,
            step=step,
            body=request.body,
            headers=request.headers,
            status=answer.status,
            code=code,
            at=time.monotonic(),
        )
        self.sent.append(sent)

    def _route(self, request: ClientRequest) -> tuple[str, Callable[[ClientRequest], ScriptedAnswer]]:
        match (request.method, *request.parts):
            case ("GET",):
                return "task", self._task
            case ("POST", "clients"):
                return "enrol", self._enrol
            case ("PUT", "clients", "me", "profile"):
                return "profile", self._store_profile
            case ("GET", "clients", "me", "selection"):
                return "selection", lambda _: json_answer({"selected": True, "profiles": 3, "selected_clients": 3})
            case ("GET", "clients", "me", "ledger"):
                return "ledger", self._ledger
            case ("DELETE", "clients", "me"):
                return "leave", self._leave
            case ("GET", "rounds", "current"):
                return "poll", self._poll
            case ("GET", "models", version) if version.isdigit():
                return "model", self._model
            case ("PUT", "rounds", number, "budget") if number.isdigit():
                return "budget", self._budget
            case ("PUT", "rounds", number, "update") if number.isdigit():
                return "update", self._update
            case ("GET", "rounds", number) if number.isdigit():
                return "result", self._result
        return "unknown", not_found

    def _authenticate(self, request: ClientRequest) -> None:
        allowed = {f"Bearer {self._token}"} if self._key is not None else set()
        if not request.parts:
            allowed.add(f"Bearer {self.code}")
        if request.headers.get("authorization") not in allowed:
            raise Refusal(ErrorCode.UNAUTHENTICATED)

    def _trouble(self, kind: str, fault: Fault) -> ScriptedAnswer | None:
        """The answer of a fault; a busy store and a lost answer happen once for each kind and step."""
        if fault is Fault.CLOSED:
            self._advance()
            raise Refusal(ErrorCode.ROUND_CLOSED)
        place = (kind, self._step.place if kind in ("budget", "update") and self._step is not None else None)
        if fault is Fault.NONE or place in self._troubled:
            return None
        self._troubled.add(place)
        if fault is Fault.LOST:
            return ScriptedAnswer(None)
        return problem_answer(Problem.of(ErrorCode.STORE_BUSY), {"Retry-After": str(RETRY_AFTER_S)})

    def _task(self, _: ClientRequest) -> ScriptedAnswer:
        view = {"task_id": self.task_id, "name": "conformance", "preset": None, "state": "enrolling"}
        numbers = {"settled_rounds": 0, "horizon": self.spec.game.horizon, "clients": 0, "paid_micro": 0}
        return json_answer(view | numbers | {"spec": self.shown_spec, "spec_digest": self.spec_digest})

    def _enrol(self, request: ClientRequest) -> ScriptedAnswer:
        enrolment = EnrolRequest.model_validate_json(request.body)
        if enrolment.enrolment_code != self.code:
            raise Refusal(ErrorCode.UNAUTHENTICATED)
        if self._key not in (None, enrolment.enrolment_key):
            raise Refusal(ErrorCode.CODE_USED, "the code was used with another enrolment key")
        if answer := self._trouble("enrol", Fault.BUSY if self.scenario.troubled else Fault.NONE):
            return answer
        self._key = enrolment.enrolment_key
        identity = {"client_id": "conformance-client", "token": self._token, "ordinal": enrolment.ordinal or 0}
        return json_answer(identity | {"spec_digest": self.spec_digest}, 201)

    def _store_profile(self, request: ClientRequest) -> ScriptedAnswer:
        profile = Profile.model_validate_json(request.body)
        if profile.label_counts is None:
            raise Refusal(ErrorCode.HISTOGRAM_REQUIRED)
        if len(profile.label_counts) != self.spec.workload.labels:
            raise Refusal(ErrorCode.HISTOGRAM_MISMATCH)
        if profile.privacy_value is None:
            raise Refusal(ErrorCode.PRIVACY_VALUE_REQUIRED)
        if answer := self._trouble("profile", Fault.LOST if self.scenario.troubled else Fault.NONE):
            return answer
        if self.profile not in (None, profile):
            raise Refusal(ErrorCode.PROFILE_FROZEN)
        self.profile = profile
        return json_answer({"client_id": "conformance-client", "profile_digest": profile_digest(profile)})

    def _leave(self, _: ClientRequest) -> ScriptedAnswer:
        self._place = len(self.scenario.steps)
        self.told_end = True
        return ScriptedAnswer(204)

    # --- rounds -------------------------------------------------------------------------------------------------------

    @property
    def _step(self) -> Step | None:
        return self.scenario.steps[self._place] if self._place < len(self.scenario.steps) else None

    def _advance(self) -> None:
        self._place += 1
        self._idle = 0

    def _poll(self, request: ClientRequest) -> ScriptedAnswer:
        if self.profile is None:
            return json_answer({"task_state": "enrolling", "reason": None, "round": None})
        seen = _place_of(request.query.get("after", "0.0"))
        step = self._step
        if step is not None and seen >= step.place:
            # The client has seen this announcement and does not answer it, or not yet.
            self._idle += 1
            waiting = step.number in self._declared and step.number not in self._delivered
            if self._idle <= (_IDLE_POLLS_DECLARED if waiting else _IDLE_POLLS):
                return ScriptedAnswer(204)
            self._advance()
            step = self._step
        if step is None:
            self.told_end = True
            return json_answer({"task_state": "finished", "reason": "horizon_reached", "round": None})
        return json_answer({"task_state": "training", "reason": None, "round": self._offer(step)})

    def _offer(self, step: Step) -> dict[str, Any]:
        assert self.profile is not None
        mechanism = self.spec.privacy.mechanism.model_dump()
        now = datetime.now(UTC).isoformat()
        return UNKNOWN_FIELD | {
            **{"round_number": step.number, "attempt": step.attempt, "standing": step.standing.value},
            **{"reward_micro": step.reward_micro(cost=self._cost), "total": step.total()},
            **{"model_version": step.number - 1, "model_digest": digest_of(self._model_of(step))},
            **{"mechanism": mechanism["name"], "clip_norm": mechanism["clip_norm"] * step.clip_norm_factor},
            **{"dimension": self.spec.dimension, "noise": True, "rho_max": step.rho_max or self.spec.bounds.rho_max},
            **{"declare_by": now, "deliver_by": now, "declare_in_s": _DEADLINE_S, "deliver_in_s": _DEADLINE_S},
        }

    def _model_of(self, step: Step) -> bytes:
        return model_bytes(spec=self.spec, label=self.offered_label(step.model))

    def _model(self, request: ClientRequest) -> ScriptedAnswer:
        step = self._step
        if step is None or int(request.parts[1]) != step.number - 1:
            raise Refusal(ErrorCode.NOT_FOUND)
        data = self._model_of(step)
        if self.scenario.model_lie:
            data = data[:-4] + np.float32(0.5).tobytes()
        headers = {"Content-Digest": content_digest(data), "ETag": f'"{digest_of(data)}"'}
        return ScriptedAnswer(200, data, headers | {"Content-Type": "application/octet-stream"})

    def _current(self, request: ClientRequest) -> Step:
        """The open round of a request."""
        step, number = self._step, int(request.parts[1])
        if step is None or number < step.number:
            raise Refusal(ErrorCode.ROUND_CLOSED)
        if number > step.number:
            raise Refusal(ErrorCode.NOT_FOUND)
        return step

    def _budget(self, request: ClientRequest) -> ScriptedAnswer:
        step = self._current(request)
        budget = _BUDGETS.validate_json(request.body)
        if answer := self._trouble("budget", step.budget_fault):
            return answer
        if step.standing is not Standing.INVITED:
            raise Refusal(ErrorCode.NOT_INVITED)
        known = self._declared.get(step.number)
        if known is not None and known != budget and not isinstance(budget, Decline):
            raise Refusal(ErrorCode.BUDGET_DECLARED)
        if isinstance(budget, Declaration) and budget.rho > (step.rho_max or self.spec.bounds.rho_max):
            raise Refusal(ErrorCode.OUT_OF_BOUNDS)
        self._declared[step.number] = budget
        rho = budget.rho if isinstance(budget, Declaration) else None
        state = "declared" if rho is not None else "declined" if isinstance(budget, Decline) else "joined"
        if state == "declined":
            self._advance()
        recorded = {"client_id": "conformance-client", "recorded_at": datetime.now(UTC).isoformat()}
        return json_answer(recorded | {"round_number": step.number, "state": state, "rho": rho})

    def _update(self, request: ClientRequest) -> ScriptedAnswer:
        number = int(request.parts[1])
        if self._delivered.get(number) == request.body:
            return self._receipt(number, request.body)
        step = self._current(request)
        if not isinstance(self._declared.get(step.number), Declaration):
            raise Refusal(ErrorCode.BUDGET_MISSING)
        try:
            if parse_content_digest(request.headers.get("content-digest", "")) != digest_of(request.body):
                raise Refusal(ErrorCode.DIGEST_MISMATCH)
            decode(request.body, dimension=self.spec.dimension)
        except WireError as error:
            raise Refusal(error.code, error.detail) from None
        if answer := self._trouble("update", step.update_fault):
            return answer
        if step.number in self._delivered:
            raise Refusal(ErrorCode.UPDATE_EXISTS)
        self._delivered[step.number] = request.body
        self._advance()
        return self._receipt(number, request.body)

    def _receipt(self, number: int, data: bytes) -> ScriptedAnswer:
        receipt = {"client_id": "conformance-client", "received_at": datetime.now(UTC).isoformat()}
        return json_answer(receipt | {"round_number": number, "digest": digest_of(data), "byte_length": len(data)})

    # --- results ------------------------------------------------------------------------------------------------------

    def _payment(self, number: int) -> tuple[Step, float, int]:
        """The first announcement of a round, the declared budget and the payment."""
        assert self.profile is not None
        step = next(step for step in self.scenario.steps if step.number == number)
        budget = self._declared.get(number)
        rho = budget.rho if isinstance(budget, Declaration) else 0.0
        reward = step.reward_micro(cost=self._cost)
        others = max(step.total() - rho, 0.0)
        split = split_reward(reward_micro=reward, declared=[rho, others], delivered=[number in self._delivered, True])
        return step, rho, split.payments[0]

    def _result(self, request: ClientRequest) -> ScriptedAnswer:
        number = int(request.parts[1])
        if self.profile is None or number > self.spec.game.horizon:
            raise Refusal(ErrorCode.NOT_FOUND)
        step, rho, payment = self._payment(number)
        reward = step.reward_micro(cost=self._cost)
        own = {"client_id": "conformance-client", "ordinal": 0, "standing": step.standing.value, "rho": rho}
        delivered = number in self._delivered
        own |= {"declined": False, "delivered": delivered, "accepted": delivered, "payment_micro": payment}
        totals = {"reward_micro": reward, "paid_micro": reward, "kept_micro": 0, "total": step.total(), "updates": 3}
        place = {"round_number": number, "attempt": step.attempt, "state": "settled", "model_version": number}
        return json_answer(place | totals | {"own": own})

    def _ledger(self, request: ClientRequest) -> ScriptedAnswer:
        entries = []
        for number, data in sorted(self._delivered.items()):
            _, rho, payment = self._payment(number)
            entry: dict[str, Any] = {
                "release": f"round/{number}",
                "mechanism": "gradient_once",
                "state": "spent",
                "rho": rho,
            }
            entries.append(entry | {"proven_rho": rho, "digest": digest_of(data), "payment_micro": payment})
        spent = sum(entry["rho"] for entry in entries)
        delta = self.spec.privacy.delta
        epsilon = epsilon_from_rho(rho=spent, delta=delta) if spent else 0.0
        totals = {"spent_rho": spent, "epsilon": epsilon, "delta": delta}
        earned = sum(entry["payment_micro"] for entry in entries)
        return json_answer({"client_id": "conformance-client", "entries": entries, "earned_micro": earned} | totals)


def _place_of(after: str) -> tuple[int, int]:
    number, _, attempt = after.partition(".")
    if not (number.isdigit() and attempt.isdigit()):
        raise Refusal(ErrorCode.INVALID_REQUEST, "after is ROUND.ATTEMPT")
    return int(number), int(attempt)
