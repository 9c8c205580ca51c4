"""What all commands share: how they fail, how they are stopped, and options that several of them have."""

import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def one_line_errors(
    program: str, *expected: type[Exception]
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """End with one readable line instead of a traceback, for what a user or the machine can get wrong.

    Besides the expected errors these are values that do not validate, and whatever the operating system refuses.
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
            print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
            raise SystemExit(1)

        return wrapped

    return decorated


def first_fault(error: ValidationError) -> str:
    """The first thing that does not validate, in one line: where, and why; what was given is not repeated."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def sharing_options(build: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the options of `build`, and hand it what `build` makes of them as its first argument."""
    shared = inspect.signature(build).parameters

    def decorated(function: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(function)
        def wrapped(**given: Any) -> Result:
            first = build(**{name: given.pop(name) for name in shared})
            return function(first, **given)

        signature = inspect.signature(function)
        own = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in list(signature.parameters.values())[1:]]
        # Help shows them in this order: what must be given first.
        options = sorted([*own, *shared.values()], key=lambda part: part.default is not inspect.Parameter.empty)
        wrapped.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
        return wrapped

    return decorated


def output_width() -> int | None:
    """The width for a table on standard output; None: that of the terminal. In a pipe no row is broken."""
    return None if sys.stdout.isatty() else 10_000


class Stopped(BaseException):
    """SIGTERM or Ctrl-C: end now."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` at the first signal to stop; later ones, and those that come while Python exits, are ignored.

    Python gives up its handlers while it leaves, which takes a while with torch: a signal would count as a crash.
    """
    for number in _STOPPING:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        _ignore_signals()


_STOPPING = (signal.SIGTERM, signal.SIGINT)


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal would interrupt the leaving itself.
    _ignore_signals()
    raise Stopped


def _ignore_signals() -> None:
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
