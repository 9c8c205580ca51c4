"""`AdminApi`: the calls of an admin or a viewer."""

import json
from collections.abc import Iterator, Mapping

import httpx

from qidpfl_shared.protocol.credentials import (
    CreatedOperatorToken,
    CreateOperatorToken,
    OperatorRole,
    OperatorTokenInfo,
    RotateOperatorToken,
)
from qidpfl_shared.protocol.evidence import Tombstone
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import ClientSummary, Event, ModelInfo, RoundResult, TaskSummary, TaskView
from qidpfl_shared.protocol.operators import (
    AccountPage,
    AccountSummary,
    ClientRound,
    CreateCodes,
    CreatedCodes,
    CreatedTask,
    Deadlines,
    EnrolmentCodeInfo,
    PresetInfo,
    RoundProgress,
    RoundSummary,
    WhatIf,
    WhatIfRequest,
)
from qidpfl_shared.protocol.wire import Vector32, digest_of

from ..errors import Misconfigured
from ._base import JSON, Interface
from .answers import LARGE
from .credentials import checked_id
from .retries import Retries
from .transport import untrusted

_TOKENS = "/v1/operator-tokens"
# So many rounds or clients are asked for at once.
_PAGE = 500


class AdminApi(Interface):
    """All tasks of one coordinator.

    Args:
        http: the connection, made by `connect`.
        token: the token of the admin. A viewer's token suffices for the calls that only read.
        retries: how often harmless calls are repeated.

    Raises:
        Misconfigured: the token has impossible characters.

    All calls raise the errors of `qidpfl_client.errors`, as those of `TaskApi` do.

    >>> def coordinator(request):  # stands for a real one
    ...     return httpx.Response(200, json=[])
    >>> http = httpx.Client(base_url="https://host", transport=httpx.MockTransport(coordinator))
    >>> AdminApi(http, token="token-of-the-admin").tasks()
    []
    """

    def __init__(self, http: httpx.Client, *, token: str, retries: Retries | None = None) -> None:
        super().__init__(http, token=token, retries=retries or Retries())

    def __repr__(self) -> str:
        return f"AdminApi({self.server})"

    def create_task(
        self,
        name: str,
        *,
        preset: str,
        overrides: Mapping[str, object] | None = None,
        single_use_codes: int | None = None,
    ) -> CreatedTask:
        """Create a task from a preset.

        The SDK never retries this call: if the answer is lost, so are its enrolment codes.

        Args:
            name: the name of the task, unique on this coordinator.
            preset: the name of the preset.
            overrides: fields of the spec that differ from the preset.
            single_use_codes: how many enrolment codes for one client each to make. None: one for each expected
                client. 0: one code for many clients, for testbeds.

        Raises:
            Misconfigured: the overrides are not JSON.
        """
        body = {
            "name": name,
            "preset": preset,
            "overrides": dict(overrides or {}),
            "single_use_codes": single_use_codes,
        }
        content = _json_bytes(body)
        call = self._call(
            "POST", "/v1/tasks", content=content, headers=JSON, limit=LARGE, expected=(201,), repeatable=False
        )
        return self._send(call).read(CreatedTask)

    def tasks(self) -> list[TaskSummary]:
        """All tasks, oldest first."""
        return self._send(self._call("GET", "/v1/tasks", limit=LARGE)).read_list(TaskSummary)

    def task(self, task_id: str) -> TaskView:
        """One task with its spec."""
        return self._task(self._call("GET", _path(task_id)), task_id=task_id)

    def start(self, task_id: str, *, window: bool = False) -> TaskSummary:
        """Select clients now, without waiting for more of them. With `window` only begin the enrolment window."""
        params = {"window": "true"} if window else {}
        return self._send(self._call("POST", f"{_path(task_id)}/start", params=params)).read(TaskSummary)

    def pause(self, task_id: str) -> TaskSummary:
        """Open no new round until `resume`. An open round goes on to its end."""
        return self._send(self._call("POST", f"{_path(task_id)}/pause")).read(TaskSummary)

    def resume(self, task_id: str) -> TaskSummary:
        """Continue a paused task, or one that failed because of a fault of the coordinator."""
        return self._send(self._call("POST", f"{_path(task_id)}/resume")).read(TaskSummary)

    def set_deadlines(self, task_id: str, *, declare_s: float | None, deliver_s: float | None) -> Deadlines:
        """Change the deadlines from the next round or attempt on. None: what the spec says."""
        content = Deadlines(declare_s=declare_s, deliver_s=deliver_s).model_dump_json().encode()
        return self._send(self._call("PUT", f"{_path(task_id)}/deadlines", content=content, headers=JSON)).read(
            Deadlines
        )

    def what_if(self, task_id: str, request: WhatIfRequest | None = None) -> WhatIf:
        """What a change of the task would cost. Nothing is stored."""
        content = (request or WhatIfRequest()).model_dump_json().encode()
        call = self._call("POST", f"{_path(task_id)}/what-if", content=content, headers=JSON)
        return self._send(call).read(WhatIf)

    def stop(self, task_id: str) -> TaskSummary:
        """End a task. The coordinator settles the open round if it has enough updates."""
        return self._send(self._call("POST", f"{_path(task_id)}/stop")).read(TaskSummary)

    def delete(self, task_id: str) -> Tombstone:
        """Delete a task that has ended; its signed tombstone. A repeat returns the same one."""
        return self._send(self._call("DELETE", _path(task_id))).read(Tombstone)

    def clients(self, task_id: str) -> list[ClientSummary]:
        """Every client with its profile, label distance and verdict."""
        return self._send(self._call("GET", f"{_path(task_id)}/clients", limit=LARGE)).read_list(ClientSummary)

    def put_out(self, task_id: str, client_id: str) -> None:
        """Revoke the token of a client. The client is out from the next round on."""
        path = f"{_path(task_id)}/clients/{checked_id(client_id, of='client')}"
        self._send(self._call("DELETE", path, expected=(204,)))

    def round(self, task_id: str, round_number: int) -> RoundResult:
        """A round; with the parts of all clients once it is closed."""
        call = self._call("GET", f"{_path(task_id)}/rounds/{round_number}", limit=LARGE)
        return self._round(call, round_number=round_number)

    def rounds(self, task_id: str) -> list[RoundResult]:
        """All settled rounds, in order."""
        return [self.round(task_id, number + 1) for number in range(self.task(task_id).settled_rounds)]

    def presets(self) -> list[PresetInfo]:
        """The ready-made tasks of the coordinator."""
        return self._send(self._call("GET", "/v1/presets", limit=LARGE)).read_list(PresetInfo)

    def round_list(self, task_id: str) -> list[RoundSummary]:
        """All rounds with their totals, the open one too, without the parts of the clients."""
        found: list[RoundSummary] = []
        while True:
            after = found[-1].round_number if found else 0
            call = self._call("GET", f"{_path(task_id)}/rounds?after={after}&limit={_PAGE}", limit=LARGE)
            page = self._send(call).read_list(RoundSummary)
            found += page
            if len(page) < _PAGE:
                return found

    def progress(self, task_id: str) -> RoundProgress:
        """The open round: which clients have answered, and which are awaited."""
        return self._send(self._call("GET", f"{_path(task_id)}/progress", limit=LARGE)).read(RoundProgress)

    def accounts(self, task_id: str) -> list[AccountSummary]:
        """What every client has spent and earned in closed rounds."""
        found: list[AccountSummary] = []
        while True:
            after = found[-1].ordinal if found else -1
            call = self._call("GET", f"{_path(task_id)}/accounts?after={after}&limit={_PAGE}", limit=LARGE)
            page = self._send(call).read(AccountPage).accounts
            found += page
            if len(page) < _PAGE:
                return found

    def client_rounds(self, task_id: str, client_id: str) -> list[ClientRound]:
        """What one client did and got in every closed round."""
        path = f"{_path(task_id)}/clients/{checked_id(client_id, of='client')}/rounds"
        return self._send(self._call("GET", path, limit=LARGE)).read_list(ClientRound)

    def client_ledger(self, task_id: str, client_id: str) -> Ledger:
        """The ledger of one client, without the open round."""
        path = f"{_path(task_id)}/clients/{checked_id(client_id, of='client')}/ledger"
        return self._send(self._call("GET", path, limit=LARGE)).read(Ledger)

    def codes(self, task_id: str) -> list[EnrolmentCodeInfo]:
        """All enrolment codes of a task, without their secrets."""
        return self._send(self._call("GET", f"{_path(task_id)}/codes", limit=LARGE)).read_list(EnrolmentCodeInfo)

    def create_codes(self, task_id: str, count: int = 1, *, single_use: bool = True) -> CreatedCodes:
        """Make further enrolment codes. The SDK never retries this call: if the answer is lost, so are the codes."""
        content = CreateCodes(count=count, single_use=single_use).model_dump_json().encode()
        call = self._call(
            "POST",
            f"{_path(task_id)}/codes",
            content=content,
            headers=JSON,
            limit=LARGE,
            expected=(201,),
            repeatable=False,
        )
        return self._send(call).read(CreatedCodes)

    def revoke_code(self, task_id: str, code_id: str) -> None:
        """Let no further client enrol with a code."""
        path = f"{_path(task_id)}/codes/{checked_id(code_id, of='code')}"
        self._send(self._call("DELETE", path, expected=(204,)))

    def models(self, task_id: str) -> list[ModelInfo]:
        """All versions of the model, 0 first."""
        return self._send(self._call("GET", f"{_path(task_id)}/models", limit=LARGE)).read_list(ModelInfo)

    def model(self, task_id: str, info: ModelInfo) -> Vector32:
        """The parameters of a version; raises `UntrustedCoordinator` if the digest differs."""
        call = self._call("GET", f"{_path(task_id)}/models/{info.version}")
        return self._model(call, digest=info.digest, dimension=info.dimension)

    def safetensors(self, task_id: str, version: int) -> bytes:
        """A version as the bytes of a safetensors file, with named tensors."""
        limit = self.task(task_id).spec.layout.byte_length + LARGE
        return self._send(self._call("GET", f"{_path(task_id)}/models/{version}.safetensors", limit=limit)).body

    def give_model(self, task_id: str, data: bytes) -> ModelInfo:
        """Set the model that the task starts from. Possible until the first round is announced."""
        call = self._vector(f"{_path(task_id)}/models/0", data, digest=digest_of(data))
        info = self._send(call).read(ModelInfo)
        if (info.version, info.digest) != (0, digest_of(data)):
            raise untrusted(call, "a receipt for another model")
        return info

    def create_token(
        self, name: str, *, role: OperatorRole, task_id: str | None = None, valid_s: float | None = None
    ) -> CreatedOperatorToken:
        """Make a token for another operator. Only an admin of all tasks may.

        The SDK never retries this call: if the answer is lost, so is its token. Revoke it and make another one.

        Args:
            name: whose token it is.
            role: `OperatorRole.ADMIN` or `OperatorRole.VIEWER`.
            task_id: the only task that the token is for; None: all tasks.
            valid_s: the seconds until it expires; None: never.
        """
        request = CreateOperatorToken(name=name, role=role, task_id=task_id, valid_s=valid_s)
        content = request.model_dump_json().encode()
        call = self._call("POST", _TOKENS, content=content, headers=JSON, expected=(201,), repeatable=False)
        return self._send(call).read(CreatedOperatorToken)

    def tokens(self) -> list[OperatorTokenInfo]:
        """All tokens of operators, also revoked ones; never the tokens themselves."""
        return self._send(self._call("GET", _TOKENS, limit=LARGE)).read_list(OperatorTokenInfo)

    def revoke_token(self, token_id: str) -> None:
        """Revoke the token of an operator, at once on this coordinator and within about a second on others."""
        self._send(self._call("DELETE", f"{_TOKENS}/{checked_id(token_id, of='token')}", expected=(204,)))

    def rotate_token(self, token_id: str, *, overlap_s: float = 3600.0) -> CreatedOperatorToken:
        """Replace the token of an operator. The old one stays valid for `overlap_s` seconds.

        A repeat after a lost answer is harmless: the old token stays the one that was in use.
        """
        content = RotateOperatorToken(overlap_s=overlap_s).model_dump_json().encode()
        path = f"{_TOKENS}/{checked_id(token_id, of='token')}/rotate"
        return self._send(self._call("POST", path, content=content, headers=JSON)).read(CreatedOperatorToken)

    def events(self, task_id: str, *, after: int = 0) -> Iterator[Event]:
        """The events of a task as they happen, until it has ended. Reconnects after a lost connection."""
        return self._events(_path(task_id), after, task=lambda: self.task(task_id))


def _json_bytes(body: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Misconfigured(f"the overrides cannot be written as JSON: {error}") from error


def _path(task_id: str) -> str:
    return f"/v1/tasks/{checked_id(task_id, of='task')}"
