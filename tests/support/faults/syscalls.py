"""The system calls of a live coordinator, recorded with strace, and the order in which they must come.

A call that makes something durable counts when it has returned. An answer counts when its call begins.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_WRITES = "write,writev,pwrite64,pwritev,sendto,sendmsg"
_TRACED = f"trace={_WRITES},fsync,fdatasync,rename,renameat,renameat2"
_LINE = re.compile(r"(?P<thread>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<name>\w+)\()(?P<rest>.*)")
_TARGET = re.compile(r"\d+<(/[^<>]*)>")
_NAMES = re.compile(r'"([^"]+)"')


@dataclass(frozen=True)
class Call:
    """A call: what it does (`write`, `sync`, `rename`, `answer`) and to which file; for a rename the new name too."""

    kind: str
    path: str = ""
    new_path: str = ""


class StraceUnavailable(Exception):
    """strace is not installed, or may not trace processes here."""


@contextmanager
def recorded(pid: int, file: Path) -> Iterator[None]:
    """Record the calls of all threads of a process into a file. Raises `StraceUnavailable`."""
    program = shutil.which("strace")
    if program is None:
        raise StraceUnavailable("strace is not installed")
    command = [program, "-f", "-y", "-s", "64", "-e", _TRACED, "-o", str(file), "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    if "attached" not in said:
        tracer.kill()
        tracer.communicate()
        raise StraceUnavailable(f"strace cannot trace a process here: {said.strip()}")
    try:
        # The threads are attached one after the other.
        time.sleep(0.5)
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def calls_of(lines: Iterable[str]) -> list[Call]:
    """The calls in the output of `strace -f -y`, in the order in which they count."""
    unfinished: dict[str, tuple[str, str]] = {}
    found = []
    for line in lines:
        if (match := _LINE.match(line)) is None:
            continue
        thread, name, rest = match["thread"], match["name"] or match["resumed"], match["rest"]
        begins, ends = match["name"] is not None, "<unfinished" not in rest
        if begins and "HTTP/1.1 " in rest:
            found.append(Call("answer"))
        if begins and not ends:
            unfinished[thread] = (name, rest)
        elif ends:
            whole = rest if begins else unfinished.pop(thread, (name, ""))[1] + rest
            if " = -1 " not in whole:
                found += _finished(name, whole)
    return found


def _finished(name: str, text: str) -> list[Call]:
    if name.startswith("rename"):
        old, new = _NAMES.findall(text)[:2]
        return [Call("rename", old, new)]
    # The target of an answer is a socket, which has no path.
    target = _TARGET.match(text)
    if target is None:
        return []
    return [Call("sync" if name in ("fsync", "fdatasync") else "write", target[1])]


def budget_problems(calls: list[Call]) -> list[str]:
    """What is wrong with the order of the calls up to the answer to a budget."""
    return _commit_problems(calls[: _answer(calls)])


def small_upload_problems(calls: list[Call]) -> list[str]:
    """What is wrong with the order of the calls up to the answer to a small upload, which is a row of the database."""
    before = calls[: _answer(calls)]
    named = [call.new_path for call in before if call.kind == "rename" and "/objects/" in call.new_path]
    return [*(f"{path} is a file, not a row" for path in named), *_commit_problems(before)]


def upload_problems(calls: list[Call]) -> list[str]:
    """What is wrong with the order of the calls up to the answer to an upload that is a file."""
    before = calls[: _answer(calls)]
    renames = [(at, call) for at, call in enumerate(before) if call.kind == "rename" and "/objects/" in call.new_path]
    if not renames:
        return ["the bytes of the update have no name before the answer", *_commit_problems(before)]
    problems = _commit_problems(before)
    at, rename = renames[-1]
    problems += _unsynced(before[:at], rename.path, "the bytes of the update are not synced before they are renamed")
    folder = str(Path(rename.new_path).parent)
    named = [k for k, call in enumerate(before) if k > at and call == Call("sync", folder)]
    if not named:
        problems.append("the folder is not synced after the update was renamed")
    elif not any(call.kind == "sync" and call.path.endswith("-wal") for call in before[named[0] :]):
        problems.append("the row is committed before the name of the update is durable")
    return problems


def _answer(calls: list[Call]) -> int:
    return next((at for at, call in enumerate(calls) if call.kind == "answer"), len(calls))


def _commit_problems(before: list[Call]) -> list[str]:
    logs = {call.path for call in before if call.kind == "write" and call.path.endswith("-wal")}
    if not logs:
        return ["nothing is written to the log of the database before the answer"]
    return [problem for log in logs for problem in _unsynced(before, log, "the commit is not synced before the answer")]


def _unsynced(calls: list[Call], path: str, problem: str) -> list[str]:
    """The problem, unless the last write to a file is followed by a sync of it."""
    last = {call.kind: at for at, call in enumerate(calls) if call.path == path}
    return [] if last.get("write", -1) < last.get("sync", -1) else [problem]
