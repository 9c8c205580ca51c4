"""How every command fails: one readable line, and a status that is not zero."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

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
                first = error.errors(include_input=False, include_url=False)[0]
                message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
            except OSError as error:
                message = f"{error.filename or ''} {error.strerror or error}".strip()
            print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
            raise SystemExit(1)

        return wrapped

    return decorated
