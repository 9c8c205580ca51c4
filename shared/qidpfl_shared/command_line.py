"""What all commands share: error messages, signals, and common options."""

import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import version
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_line_errors(
    program: str, *expected: type[Exception]
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Print one readable line instead of a traceback, and exit with status 1.

    This applies to the expected errors, to values that do not validate, and to errors of the operating system.
    """

    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except expected as error:
                message = str(error)
            except ValidationError as error:
                message = first_fault(error)
            except OSError as error:
                message = ": ".join(map(str, filter(None, (error.filename, error.strerror or error))))
            # A part of the message may come from another machine: no control character reaches the terminal.
            printable = "".join(character if character.isprintable() else " " for character in message)
            print(f"{program}: {' '.join(printable.split())}", file=sys.stderr)
            raise SystemExit(1)

        return wrapped

    return decorated


def first_fault(error: ValidationError) -> str:
    """Return the place and the reason of the first validation error in one line, without the given value."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def sharing_options(build: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the options of `build`, and pass the result of `build` as its first argument."""
    shared = inspect.signature(build).parameters

    def decorated(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def wrapped(**given: Any) -> Result:
            first = build(**{name: given.pop(name) for name in shared})
            return function(first, **given)

        signature = inspect.signature(function)
        own = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in list(signature.parameters.values())[1:]]
        # The help shows them in this order: required options first.
        options = sorted([*own, *shared.values()], key=lambda part: part.default is not inspect.Parameter.empty)
        wrapped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
        return wrapped

    return decorated


def show_version(program: str, protocol: str) -> Callable[[bool], None]:
    """The action of --version: print the version of a program and of the protocol, and exit."""

    def show(wanted: bool) -> None:
        if wanted:
            print(f"{program} {version(program)}, protocol {protocol}, Python {sys.version.split()[0]}")
            raise SystemExit(0)

    return show


def output_width() -> int | None:
    """The width for a table on standard output; None: that of the terminal. In a pipe no row is broken."""
    return None if sys.stdout.isatty() else 10_000


class Stopped(BaseException):
    """SIGTERM or Ctrl-C was received: stop now."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` at the first signal to stop. Ignore later signals, also while Python exits.

    Python removes its handlers at its exit, which takes some time with torch. A signal then would look like a crash.
    """
    for number in _STOPPING:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        _ignore_signals()


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal would interrupt the clean-up.
    _ignore_signals()
    raise Stopped


def _ignore_signals() -> None:
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
