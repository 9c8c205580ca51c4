"""`TaskApi`: the protocol of one task as typed, synchronous calls.

Every call is bounded in time and size. The SDK retries a call only if the protocol makes the repeat harmless. Calls
raise only the errors of `qidpfl_client.errors`. Use one instance per thread.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Unpack

import httpx

from qidpfl_shared.protocol.credentials import CertificateEnrolment, NewClientToken
from qidpfl_shared.protocol.evidence import ProfileReceipt, profile_digest
from qidpfl_shared.protocol.fields import Message
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import (
    Announcement,
    BudgetReceipt,
    BudgetRequest,
    Declaration,
    Decline,
    EnrolAnswer,
    Event,
    Join,
    Profile,
    RoundResult,
    SelectionVerdict,
    TaskView,
    UpdateReceipt,
)
from qidpfl_shared.protocol.signatures import KeyList
from qidpfl_shared.protocol.wire import Vector32, digest_of

from ._base import JSON, Interface
from .answers import ledger_limit
from .credentials import checked_id, checked_token, enrol_request, split_code
from .direct import Waiting
from .retries import Retries
from .transport import Call, CallOptions, untrusted

LONGEST_WAIT_S = 60.0


class TaskApi(Interface):
    """One task of one coordinator, seen by one of its clients.

    Args:
        http: the connection, made by `connect`; many instances may share it.
        task_id: the part of the enrolment code before the dot.
        token: the client's token; `enrol` sets it.
        retries: how often harmless calls are repeated.

    Raises:
        Misconfigured: the id or the token has impossible characters.

    All calls raise the errors of `qidpfl_client.errors`: `Unreachable`, a subclass of `ApiError`, or
    `UntrustedCoordinator` for an answer that is malformed or contradicts the request.

    >>> def coordinator(request):  # stands for a real one
    ...     return httpx.Response(200, json={"selected": True, "profiles": 3, "label_distance": 0.2})
    >>> http = httpx.Client(base_url="https://host", transport=httpx.MockTransport(coordinator))
    >>> task = TaskApi(http, task_id="digits1", token="token-of-the-client")
    >>> task
    TaskApi(https://host/v1/tasks/digits1)
    >>> task.selection().selected
    True
    """

    def __init__(
        self, http: httpx.Client, *, task_id: str, token: str | None = None, retries: Retries | None = None
    ) -> None:
        super().__init__(http, token=token, retries=retries or Retries())
        self.task_id = checked_id(task_id, of="task")
        self._path = f"/v1/tasks/{task_id}"
        self._spec_digest: str | None = None
        self._dimension: int | None = None
        self._horizon: int | None = None

    def __repr__(self) -> str:
        return f"TaskApi({self.server}{self._path})"

    @property
    def token(self) -> str | None:
        """The client's token; `enrol` sets it."""
        return self._token

    @token.setter
    def token(self, token: str | None) -> None:
        self._token = None if token is None else checked_token(token)

    def task(self, *, code: str | None = None) -> TaskView:
        """The task with its spec. Before enrolment, pass the enrolment code, unless the connection has a certificate.

        Raises:
            UntrustedCoordinator: the spec differs from the first one that this instance has seen.
        """
        call = self._call("GET", self._path, token=self._token if code is None else ".".join(split_code(code)))
        view = self._task(call, task_id=self.task_id)
        self._pin(call, view.spec_digest)
        self._dimension, self._horizon = view.spec.dimension, view.spec.game.horizon
        return view

    def enrol(self, *, code: str, key: str | None = None, ordinal: int | None = None) -> EnrolAnswer:
        """Become a client of the task. The instance uses the new token from now on.

        Args:
            code: the enrolment code.
            key: a secret of the client. A repeat with the same key, before the profile is stored, returns the same
                client with a fresh token. Without a key the SDK draws one that only this call uses.
            ordinal: the wanted place in a testbed.

        Raises:
            Misconfigured: the code belongs to another task, or code, key or ordinal is impossible.
        """
        key = secrets.token_urlsafe() if key is None else key
        request = enrol_request(task_id=self.task_id, code=code, key=key, ordinal=ordinal)
        call = self._json("POST", "/clients", request, token=None, expected=(201,), hidden=(code, key))
        answer = self._send(call).read(EnrolAnswer)
        self._pin(call, answer.spec_digest)
        self._token = answer.token
        return answer

    def enrol_with_certificate(self, *, ordinal: int | None = None) -> EnrolAnswer:
        """Become a client of the task with the certificate of the connection, instead of an enrolment code.

        A certificate has one place in a task. The instance uses the new token from now on. The coordinator accepts it
        only on connections with this certificate. A repeat before the first use of the token returns the same client
        with a fresh token.

        Args:
            ordinal: the wanted place in a testbed.
        """
        call = self._json("POST", "/clients/certificate", CertificateEnrolment(ordinal=ordinal), token=None)
        call = replace(call, expected=(201,))
        answer = self._send(call).read(EnrolAnswer)
        self._pin(call, answer.spec_digest)
        self._token = answer.token
        return answer

    def next_token(self) -> str:
        """A new token for this client. The instance keeps the current one.

        Store the new token durably, then set `token` to it. Its first use revokes the current one; until then both are
        valid, and a repeat of this call replaces the new one.
        """
        return self._send(self._mine("POST", "/clients/me/token")).read(NewClientToken).token

    def store_profile(self, profile: Profile) -> ProfileReceipt | None:
        """Send the profile. It cannot change afterwards; a repeat must send the same one.

        Returns the receipt; None from a coordinator of an earlier version.
        """
        call = self._json("PUT", "/clients/me/profile", profile, expected=(200, 204))
        answer = self._send(call)
        if answer.status == 204:
            return None
        receipt = answer.read(ProfileReceipt)
        if receipt.profile_digest != profile_digest(profile):
            raise untrusted(call, "a receipt for another profile")
        return receipt

    def keys(self) -> KeyList:
        """The public keys with which the coordinator signs, oldest first."""
        return self._send(self._call("GET", "/v1/keys", token=None)).read(KeyList)

    def selection(self) -> SelectionVerdict:
        """Whether this client was selected; `selected` is None before the selection."""
        return self._send(self._mine("GET", "/clients/me/selection")).read(SelectionVerdict)

    def announcement(
        self, *, after: tuple[int, int] = (0, 0), wait_s: float = 30.0, last_result: bool = False
    ) -> Announcement | None:
        """The announcement that is newer than `after`, a round and an attempt.

        Waits up to `wait_s` seconds, at most 60. Returns None if there is nothing newer by then.

        With `last_result` the result of the last closed round comes along. A coordinator of an earlier version sends
        none: then read it with `round`.
        """
        wait_s = min(max(wait_s, 0.0), LONGEST_WAIT_S)
        params = {"after": f"{after[0]}.{after[1]}", "wait": f"{wait_s:g}"}
        if last_result:
            params["last_result"] = "true"
        answer = self._send(self._mine("GET", "/rounds/current", params=params, wait_s=wait_s, expected=(200, 204)))
        return None if answer.status == 204 else answer.read(Announcement)

    def answer(self, round_number: int, request: BudgetRequest) -> BudgetReceipt:
        """Declare a budget, decline the round, or join a round without budgets."""
        call = self._json("PUT", f"/rounds/{round_number}/budget", request)
        receipt = self._send(call).read(BudgetReceipt)
        rho = request.rho if isinstance(request, Declaration) else receipt.rho
        if (receipt.round_number, receipt.state, receipt.rho) != (round_number, _recorded_as(request), rho):
            raise untrusted(call, "a receipt for another answer")
        return receipt

    def model(self, version: int, *, digest: str, dimension: int | None = None) -> Vector32:
        """The parameters of a version, as a float32 vector.

        Args:
            version: the version that the announcement names.
            digest: the digest that the announcement names.
            dimension: the dimension of the task's spec; without it the SDK reads the spec once.

        Raises:
            UntrustedCoordinator: the bytes have another digest or length.
        """
        expected = dimension or self._dimension or self.task().spec.dimension
        return self._model(self._mine("GET", f"/models/{version}"), digest=digest, dimension=expected)

    def upload(self, round_number: int, data: bytes, *, digest: str | None = None) -> UpdateReceipt:
        """Send the update of a round. A later repeat must send the same bytes.

        Args:
            round_number: the round that is open.
            data: the vector as little-endian float32.
            digest: the SHA-256 of the data in hexadecimal, if the caller has it already.
        """
        digest = digest or digest_of(data)
        call = self._vector(f"{self._path}/rounds/{round_number}/update", data, digest=digest)
        receipt = self._send(call).read(UpdateReceipt)
        if (receipt.round_number, receipt.digest) != (round_number, digest):
            raise untrusted(call, "a receipt for another update")
        return receipt

    def round(self, round_number: int) -> RoundResult:
        """The totals of a round, and this client's part in `own`."""
        return self._round(self._mine("GET", f"/rounds/{round_number}"), round_number=round_number)

    def ledger(self) -> Ledger:
        """This client's releases as the coordinator knows them: declared, proven and paid.

        The number of rounds limits the answer: without it the SDK reads the spec once.
        """
        limit = ledger_limit(self._horizon or self.task().spec.game.horizon)
        return self._send(self._mine("GET", "/clients/me/ledger", limit=limit)).read(Ledger)

    def leave(self) -> None:
        """Leave the task. The client is out from the next round on."""
        self._send(self._mine("DELETE", "/clients/me", expected=(204,)))

    def events(self, *, after: int = 0) -> Iterator[Event]:
        """The events of the task until it has ended. Needs the token of an admin or a viewer."""
        return self._events(self._path, after, task=self.task)

    def _mine(self, method: str, path: str, **options: Unpack[CallOptions]) -> Call:
        return self._call(method, f"{self._path}{path}", **options)

    def _json(self, method: str, path: str, message: Message, **options: Unpack[CallOptions]) -> Call:
        options["content"], options["headers"] = message.model_dump_json().encode(), JSON
        return self._mine(method, path, **options)

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
    """Keeps the latest model: a client needs no other one, and the members of a fleet share it.

    `waiting` is the block in which a member waits while another one downloads the model.
    """

    def __init__(self, *, waiting: Waiting = nullcontext) -> None:
        self._lock = threading.Lock()
        self._waiting = waiting
        self._latest: tuple[str, Vector32] | None = None

    def get(self, api: TaskApi, version: int, *, digest: str, dimension: int) -> Vector32:
        """The parameters of this digest, downloaded at most once. The caller must not change them."""
        latest = self._latest
        if latest is not None and latest[0] == digest:
            return latest[1]
        with self._waiting(), self._lock:
            if self._latest is None or self._latest[0] != digest:
                self._latest = digest, api.model(version, digest=digest, dimension=dimension)
            return self._latest[1]
