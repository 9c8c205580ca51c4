"""The errors of the Python API. Every message is one readable line that says what to do.

QidpflError
  InvalidTask     the preset or a value of the task is impossible; nothing was started
  MissingExtra    a library is missing; the message names the extra that installs it
  RunFailed       the coordinator or the clients of a testbed ended with an error, or an audit found a violation

Errors of the way to a coordinator are those of `qidpfl_client.errors`. This is a separate module, because
all others import it.
"""


class QidpflError(Exception):
    """The base of all errors of the Python API."""


class InvalidTask(QidpflError, ValueError):
    """The preset or a value of the task is impossible."""


class MissingExtra(QidpflError, ImportError):
    """A library is missing that an extra installs."""

    def __init__(self, what: str, *extras: str) -> None:
        commands = " or ".join(f"pip install 'qidpfl[{extra}]'" for extra in extras)
        super().__init__(f"{what} needs a library that is not installed; install it with {commands}")


class RunFailed(QidpflError, RuntimeError):
    """A process of a testbed ended with an error, or an audit found a violation."""
