"""The kit's coordinator on a port of this machine: all of its tasks, over real HTTP."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, Problem

from .exchange import ClientRequest, ScriptedAnswer
from .played_task import PlayedTask

_LARGEST_BODY = 1 << 24


@contextmanager
def listening(tasks: Sequence[PlayedTask], *, host: str, port: int) -> Iterator[str]:
    """Serve the tasks until the end of the block; yields the address. Port 0 is any free port."""
    handler = type("Handler", (_Handler,), {"tasks": {task.task_id: task for task in tasks}})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    # A client that still waits for an answer must not hold up the end.
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tasks: dict[str, PlayedTask]

    def log_message(self, *_: object) -> None:
        """No log."""

    def _serve(self) -> None:
        where = urlsplit(self.path)
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _LARGEST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return self._send(_error(ErrorCode.LENGTH_REQUIRED))
        body = self.rfile.read(int(length))
        version, _, rest = where.path.removeprefix("/").partition("/")
        kind, _, rest = rest.partition("/")
        task_id, _, rest = rest.partition("/")
        task = self.tasks.get(task_id)
        if version != "v1" or kind != "tasks" or task is None:
            return self._send(_error(ErrorCode.NOT_FOUND))
        request = ClientRequest(
            method=self.command,
            parts=tuple(part for part in rest.split("/") if part),
            query=dict(parse_qsl(where.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
        )
        return self._send(task.answer(request))

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _send(self, answer: ScriptedAnswer) -> None:
        if answer.status is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)


def _error(code: ErrorCode) -> ScriptedAnswer:
    return ScriptedAnswer(
        code.status, Problem.of(code).model_dump_json().encode(), {"Content-Type": PROBLEM_MEDIA_TYPE}
    )
