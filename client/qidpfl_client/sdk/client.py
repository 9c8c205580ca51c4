"""The protocol as typed, synchronous calls: `TaskApi` for a client of one task, `AdminApi` for admin and viewer.

Every call is bounded in time and size. It is repeated by itself where the protocol makes a repeat harmless, and raises
nothing but the errors of `qidpfl_client.errors`. One instance serves one thread.
"""

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from qidpfl_shared.protocol.fields import Message
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    EnrolAnswer,
    Event,
    Join,
    Ledger,
    Profile,
    RoundResult,
    SelectionVerdict,
    TaskView,
    UpdateReceipt,
)
from qidpfl_shared.protocol.wire import Vector32, digest_of

from ._base import JSON, Interface
from .credentials import checked_id, checked_token, enrol_request, split_code
from .retries import Retries
from .transport import LARGE, Call, untrusted

LONGEST_WAIT_S = 60.0


class TaskApi(Interface):
    """One task of one coordinator, as one of its clients."""

    def __init__(
        self, http: httpx.Client, *, task_id: str, token: str | None = None, retries: Retries | None = None
    ) -> None:
        super().__init__(http, token=token, retries=retries or Retries())
        self.task_id = checked_id(task_id, of="task")
        self._path = f"/v1/tasks/{task_id}"
        self._spec_digest: str | None = None
        self._dimension: int | None = None

    def __repr__(self) -> str:
        return f"TaskApi({self.server}{self._path})"

    @property
    def token(self) -> str | None:
        """The credential of the client; `enrol` sets it."""
        return self._token

    @token.setter
    def token(self, token: str | None) -> None:
        self._token = None if token is None else checked_token(token)

    def task(self, *, code: str | None = None) -> TaskView:
        """The task with its spec. The first one that is seen is pinned: another spec later is not accepted."""
        call = self._call("GET", self._path, token=self._token if code is None else ".".join(split_code(code)))
        view = self._task(call, task_id=self.task_id)
        self._pin(call, view.spec_digest)
        self._dimension = view.spec.dimension
        return view

    def enrol(self, *, code: str, key: str | None = None, ordinal: int | None = None) -> EnrolAnswer:
        """Become a client of the task, and act as that client from now on.

        A repeat with the same key, before the profile is stored, gives the same client with a fresh token. Without a
        key one is drawn that nobody remembers: this call alone is repeated with it.
        """
        key = secrets.token_urlsafe() if key is None else key
        request = enrol_request(task_id=self.task_id, code=code, key=key, ordinal=ordinal)
        call = self._json("POST", "/clients", request, token=None, expected=(201,), hidden=(code, key))
        answer = self._send(call).read(EnrolAnswer)
        self._pin(call, answer.spec_digest)
        self._token = answer.token
        return answer

    def store_profile(self, profile: Profile) -> None:
        """Say what the client has to offer; frozen from now on."""
        self._send(self._json("PUT", "/clients/me/profile", profile, expected=(204,)))

    def selection(self) -> SelectionVerdict:
        """Whether this client was selected."""
        return self._send(self._mine("GET", "/clients/me/selection")).read(SelectionVerdict)

    def announcement(self, *, after: tuple[int, int] = (0, 0), wait_s: float = 30.0) -> Announcement | None:
        """What is newer than this round and attempt; None if nothing is within `wait_s` (at most 60 seconds)."""
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        params = {"after": f"{after[0]}.{after[1]}", "wait": f"{wait_s:g}"}
        answer = self._send(self._mine("GET", "/rounds/current", params=params, wait_s=wait_s, expected=(200, 204)))
        return None if answer.status == 204 else answer.read(Announcement)

    def answer(self, round_number: int, request: BudgetRequest) -> BudgetReceipt:
        """Declare a budget, decline, or join."""
        call = self._json("PUT", f"/rounds/{round_number}/budget", request)
        receipt = self._send(call).read(BudgetReceipt)
        rho = request.rho if isinstance(request, Declaration) else receipt.rho
        if (receipt.round_number, receipt.state, receipt.rho) != (round_number, _recorded_as(request), rho):
            raise untrusted(call, "a receipt for another answer")
        return receipt

    def model(self, version: int, *, digest: str, dimension: int | None = None) -> Vector32:
        """The parameters of a version, if they are exactly those of the digest.

        `dimension` is that of the task's spec, which is asked for once if it is not given.
        """
        expected = dimension or self._dimension or self.task().spec.dimension
        return self._model(self._mine("GET", f"/models/{version}"), digest=digest, dimension=expected)

    def upload(self, round_number: int, data: bytes) -> UpdateReceipt:
        """Send the update of a round. Whoever repeats it later must send these same bytes."""
        call = self._vector(f"{self._path}/rounds/{round_number}/update", data)
        receipt = self._send(call).read(UpdateReceipt)
        if (receipt.round_number, receipt.digest) != (round_number, digest_of(data)):
            raise untrusted(call, "a receipt for another update")
        return receipt

    def round(self, round_number: int) -> RoundResult:
        """A round's totals, and the client's own part."""
        return self._round(self._mine("GET", f"/rounds/{round_number}"), round_number=round_number)

    def ledger(self) -> Ledger:
        """What was declared, what is proven, what was paid."""
        return self._send(self._mine("GET", "/clients/me/ledger", limit=LARGE)).read(Ledger)

    def leave(self) -> None:
        """Out from the next round on."""
        self._send(self._mine("DELETE", "/clients/me", expected=(204,)))

    def events(self, *, after: int = 0) -> Iterator[Event]:
        """The task's events until it has ended: for a token of admin or viewer, since clients do not see the feed."""
        return self._events(self._path, after, task=self.task)

    def _mine(self, method: str, path: str, **options: Any) -> Call:
        return self._call(method, f"{self._path}{path}", **options)

    def _json(self, method: str, path: str, message: Message, **options: Any) -> Call:
        return self._mine(method, path, content=message.model_dump_json().encode(), headers=JSON, **options)

    def _pin(self, call: Call, spec_digest: str) -> None:
        if self._spec_digest not in (None, spec_digest):
            raise untrusted(call, "the task has another spec than before")
        self._spec_digest = spec_digest


def _recorded_as(request: BudgetRequest) -> str:
    match request:
        case Declaration():
            return "declared"
        case Decline():
            return "declined"
        case Join():
            return "joined"


class ModelCache:
    """Keeps the latest model: a client needs no other one, and the members of a fleet share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: tuple[str, Vector32] | None = None

    def get(self, api: TaskApi, version: int, *, digest: str, dimension: int) -> Vector32:
        """The parameters of this digest, downloaded at most once. The caller must not change them."""
        with self._lock:
            if self._latest is None or self._latest[0] != digest:
                self._latest = digest, api.model(version, digest=digest, dimension=dimension)
            return self._latest[1]
