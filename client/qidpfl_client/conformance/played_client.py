"""A client of the kit without records: it sends valid and invalid requests, and keeps every answer."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from pydantic import ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.core.equilibrium import best_response
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import EnrolAnswer, Profile, RoundOffer
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import content_digest, encode

from ..errors import Unreachable, UntrustedCoordinator
from ..noise import NoiseSource, SystemNoise, noised

_OCTETS = "application/octet-stream"
# Statuses that a client waits for and tries again.
_LATER = (429, 503)


@dataclass(frozen=True)
class Reply:
    """An answer of the coordinator. Names of headers are in lower case."""

    call: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The members of a JSON answer; none if it is something else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def members(self, name: str) -> list[dict[str, Any]]:
        """The objects in a list of the answer."""
        values = self.json.get(name)
        return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []

    @property
    def code(self) -> str | None:
        """The code of an error."""
        code = self.json.get("code")
        return code if isinstance(code, str) else None

    @property
    def said(self) -> str:
        """Status and code in words."""
        return f"{self.call} got {self.status}" + (f" {self.code}" if self.code else "")


@dataclass
class RawCaller:
    """Requests to one coordinator. `replies` has all answers."""

    http: httpx.Client
    replies: list[Reply] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Reply:
        """Send one request. Statuses 429 and 503 are tried again after `Retry-After`, a few times."""
        sent = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        if isinstance(body, Mapping):
            body, sent = json.dumps(body).encode(), {"Content-Type": "application/json"} | sent
        for attempt in range(5):
            reply = self._once(method, path, body, sent, wait_s)
            if reply.status not in _LATER or attempt == 4:
                break
            after = reply.headers.get("retry-after", "1")
            time.sleep(min(10.0, float(after) if after.isdigit() else 1.0))
        return reply

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], wait_s: float) -> Reply:
        started = time.monotonic()
        try:
            answer = self.http.request(method, path, content=body, headers=headers, timeout=30.0 + wait_s)
        except httpx.HTTPError as error:
            raise Unreachable(f"{method} {path.partition('?')[0]}: {type(error).__name__}") from None
        seconds = time.monotonic() - started
        named = {name.lower(): value for name, value in answer.headers.items()}
        reply = Reply(f"{method} {path.partition('?')[0]}", answer.status_code, named, answer.content, seconds)
        self.replies.append(reply)
        return reply


@dataclass
class PlayedClient:
    """One client of the kit in a task: its identity, its profile, and what it has sent."""

    caller: RawCaller
    task_id: str
    code: str
    profile: Profile
    spec: TaskSpec
    key: str = field(default_factory=secrets.token_urlsafe)
    token: str = ""
    client_id: str = ""
    ordinal: int = 0
    public_key: str | None = None
    budgets: dict[int, float] = field(default_factory=dict)
    updates: dict[int, bytes] = field(default_factory=dict)
    noise: NoiseSource = field(default_factory=SystemNoise)

    def call(self, method: str, path: str, **options: Any) -> Reply:
        """A request to the task with the client's token."""
        return self.caller.call(method, f"/v1/tasks/{self.task_id}{path}", token=self.token, **options)

    def enrol(self) -> Reply:
        """Enrol, or enrol again with the same key."""
        body = {"enrolment_code": self.code, "enrolment_key": self.key}
        reply = self.caller.call("POST", f"/v1/tasks/{self.task_id}/clients", body=body)
        if reply.status == 201:
            try:
                told = EnrolAnswer.model_validate_json(reply.body, extra="allow")
            except ValidationError as error:
                raise UntrustedCoordinator(f"the answer to an enrolment is not valid: {first_fault(error)}") from None
            self.token, self.client_id = told.token, told.client_id
            self.ordinal, self.public_key = told.ordinal, told.public_key
        return reply

    def store_profile(self, **changes: Any) -> Reply:
        """Send the profile, or another one."""
        return self.call("PUT", "/clients/me/profile", body=self.profile.model_dump(mode="json") | changes)

    def poll(self, after: tuple[int, int], wait_s: float) -> Reply:
        """Ask for an announcement that is newer than `after`."""
        path = f"/rounds/current?after={after[0]}.{after[1]}&wait={wait_s:g}"
        return self.call("GET", path, wait_s=wait_s)

    def best(self, offer: RoundOffer) -> float:
        """The best answer to an announcement."""
        assert self.profile.privacy_value is not None
        return best_response(
            reward=from_micro(offer.reward_micro),
            total=offer.total,
            privacy_value=self.profile.privacy_value,
            privacy_weight=self.spec.game.privacy_weight,
            cap=offer.rho_max,
        )

    def declare(self, offer: RoundOffer, rho: float | None = None) -> Reply:
        """Declare the best budget, or another one."""
        rho = self.best(offer) if rho is None else rho
        reply = self.call("PUT", f"/rounds/{offer.round_number}/budget", body={"rho": rho})
        if reply.status == 200:
            self.budgets[offer.round_number] = rho
        return reply

    def decline(self, offer: RoundOffer) -> Reply:
        """Decline a round."""
        body = {"decline": True, "reason": "not_worth_it"}
        return self.call("PUT", f"/rounds/{offer.round_number}/budget", body=body)

    def update(self, offer: RoundOffer) -> bytes:
        """The noise of the declared budget around the gradient 0; drawn once for each round."""
        number = offer.round_number
        if number not in self.updates:
            rho = self.budgets.get(number, self.spec.bounds.rho_min)
            std = self.spec.privacy.mechanism.build().noise_std(rho=rho, size=self.profile.size)
            zero = np.zeros(self.spec.dimension)
            self.updates[number] = encode(noised(zero, std=std, source=self.noise, release=f"{self.key}/{number}"))
        return self.updates[number]

    def upload(self, number: int, data: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Send bytes as the update of a round, with their digest unless other headers are given."""
        headers = {"Content-Digest": content_digest(data)} if headers is None else headers
        return self.call(
            "PUT", f"/rounds/{number}/update", body=data, headers={"Content-Type": _OCTETS} | dict(headers)
        )
