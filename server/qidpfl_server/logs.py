"""Logging: one line per event, as JSON in a pipe, as text on a terminal. Never logs tokens, weights or label counts."""

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

_SECRET = ("token", "secret", "authorization", "code_text", "key")
# Names with such a word that are not secret: people compare these.
_PUBLIC = {"key_id", "public_key", "token_file"}
# What a person on a terminal does not read. JSON has it.
_FOR_PROGRAMS = ("request_id", "client_id", "client")


def configure(log_format: str) -> None:
    """Set up structlog, and send the standard library's loggers through it."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(pad_event_to=0) if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            if pretty
            else structlog.processors.TimeStamper(fmt="iso", utc=True),
            _redact,
            *([_shorten] if pretty else []),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(_CurrentStderr()),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    handler = _ToStructlog()
    for name in ("uvicorn", "uvicorn.error", "alembic"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.WARNING)


class LogThrottle:
    """Lets one line a second pass for each key, and counts the others: a failing disk must not fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[str, tuple[float, int]] = {}

    def dropped(self, key: str) -> int | None:
        """How many lines were dropped since the last one that passed; None if this one is dropped too."""
        now = self._clock()
        last, count = self._lines.get(key, (-math.inf, 0))
        if now - last < 1.0:
            self._lines[key] = (last, count + 1)
            return None
        self._lines[key] = (now, 0)
        return count


class LimitedLog:
    """Logs each event at most once a second, so that outsiders cannot fill the disk with lines.

    The next line of an event says how many were left out before it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = LogThrottle(clock)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event as a warning, unless the same event was logged less than a second ago."""
        left_out = self._throttle.dropped(event)
        if left_out is None:
            return
        if left_out:
            fields["left_out"] = left_out
        structlog.get_logger().warning(event, **fields)


def _redact(logger: Any, method: str, event: Any) -> Any:
    for name in event:
        if name not in _PUBLIC and any(word in name.lower() for word in _SECRET):
            event[name] = "[redacted]"
    return event


def _shorten(logger: Any, method: str, event: Any) -> Any:
    """Leave out what only programs read, so that most lines fit into 80 columns. The name of a task replaces its id."""
    for name in _FOR_PROGRAMS:
        event.pop(name, None)
    if "name" in event and "task" in event:
        event["task"] = event.pop("name")
    return {name: value for name, value in event.items() if value is not None}


class _CurrentStderr:
    """Writes to the current `sys.stderr`: live progress replaces it to print the log above its table."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, "library", logger=record.name, said=record.getMessage())
