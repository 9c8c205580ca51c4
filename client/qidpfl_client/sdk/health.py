"""Whether a coordinator answers: one request without any credentials, for `qidpfl-client doctor`."""

from dataclasses import dataclass

import httpx

from qidpfl_shared.protocol.errors import one_line

from ..errors import NoTrustedConnection, Unreachable
from .connection import connect
from .tls import TlsFiles, next_step, tls_problem

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class HealthAnswer:
    """The status of the answer, and its Date header if there is one."""

    status: int
    date: str | None


def ask_health(server: str, *, insecure: bool = False, tls: TlsFiles | None = None) -> HealthAnswer:
    """Ask the coordinator at this address whether it is alive.

    Raises `Unreachable`, `NoTrustedConnection`, and what `connect` raises.
    """
    with connect(server, insecure=insecure, tls=tls, timeout_s=_TIMEOUT_S) as http:
        try:
            answer = http.get("/healthz")
        except httpx.HTTPError as error:
            if (problem := tls_problem(error)) is not None:
                raise NoTrustedConnection(f"{server}: {problem}") from error
            raise Unreachable(
                f"{server} does not answer: {one_line(str(error))[:200]}{next_step(error, server)}"
            ) from error
        return HealthAnswer(answer.status_code, answer.headers.get("Date"))
