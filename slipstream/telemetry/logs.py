"""Logs of a service: lines of text or of JSON, with the ids of request, session and span.

A record is one line in both formats: text from elsewhere can't begin another one. No line quotes a
caller: only errors whose texts are made here or by the system are logged with their texts;
`ValueError: could not convert 'MY SECRET'` is logged as its class and its place.
"""

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from textwrap import indent

from opentelemetry import trace

from slipstream.core.errors import SlipstreamError
from slipstream.telemetry.traces import printable

_OURS = "slipstream"
_SAFE_ERRORS = (SlipstreamError, OSError, RuntimeError, MemoryError)
"""Errors whose texts don't quote callers; errors that are raised for a value may."""
_MOST_ERRORS = 99
"""Longest chain of errors that a line has."""
_GRPC = "grpc._cython.cygrpc"
_QUOTE = "Invalid encoding on %s"
"""Message of gRPC, with a traceback, about a header that is no UTF-8; it may be a bearer token."""
_CAUSED = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"
_BOUND: ContextVar[dict[str, str] | None] = ContextVar("slipstream_log_ids", default=None)


def bind(**ids: str) -> None:
    """Add the ids to the lines of this task, and of tasks that it starts from now on."""
    _BOUND.set((_BOUND.get() or {}) | ids)


def set_up_logging(*, as_json: bool, level: str, role: str) -> None:
    """Write the logs of this process to standard error, from `level` on, such as `info`.

    Handlers that are there already stay as they are. Libraries never log more than `info`: finer
    messages may quote what they were given. Python's warnings are lines, too.
    """
    logging.getLogger(_GRPC).addFilter(lambda record: record.msg != _QUOTE)
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(role) if as_json else TextLines())
    root.addHandler(handler)
    least = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(least, logging.INFO))
    logging.getLogger(_OURS).setLevel(least)
    logging.captureWarnings(True)


class TextLines(logging.Formatter):
    """Lines of text: ids come last, as `name=value`, before an error."""

    def format(self, record: logging.LogRecord) -> str:
        ids = "".join(f" {name}={value}" for name, value in _ids().items())
        head = f"{self.formatTime(record)} {record.levelname} {record.name}"
        parts = (f"{head} {_message(record)}{ids}", *_details(record).values())
        return printable("\n".join(parts))


class JsonLines(logging.Formatter):
    """Lines of one JSON object each, whatever is logged."""

    def __init__(self, role: str) -> None:
        """Format the lines of the service of this role."""
        super().__init__()
        self._service = f"{_OURS}-{role}"

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "timestamp": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "severity": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "service": self._service,
            **_ids(),
            **_details(record),
        }
        # ASCII alone: no reader takes a part of it for the end of a line.
        valid = {name: text.encode(errors="replace").decode() for name, text in values.items()}
        return json.dumps(valid)


def _details(record: logging.LogRecord) -> dict[str, str]:
    details = {}
    if record.exc_info and record.exc_info[1] is not None:
        details["exception"] = _error_text(record.exc_info[1], set())
    if record.stack_info:
        details["stack"] = record.stack_info
    return details


def _ids() -> dict[str, str]:
    ids = {}
    context = trace.get_current_span().get_span_context()
    if context.is_valid and context.trace_flags.sampled:
        ids["trace_id"] = trace.format_trace_id(context.trace_id)
        ids["span_id"] = trace.format_span_id(context.span_id)
    return ids | {name: value for name, value in (_BOUND.get() or {}).items() if value}


def _message(record: logging.LogRecord) -> str:
    """Return the message, or its format where it can't be made: the line must not be lost."""
    try:
        return record.getMessage()
    except Exception as error:
        text = record.msg if isinstance(record.msg, str) else type(record.msg).__qualname__
        return f"a message that can't be made of its values ({type(error).__name__}): {text}"


def _error_text(error: BaseException, seen: set[int]) -> str:
    """Return an error behind its causes, as Python prints them; errors of `seen` are left out."""
    seen.add(id(error))
    before, what_follows = error.__cause__, _CAUSED
    if before is None and not error.__suppress_context__:
        before, what_follows = error.__context__, _DURING
    parts = []
    if before is not None and id(before) not in seen and len(seen) < _MOST_ERRORS:
        parts += [_error_text(before, seen), f"\n{what_follows}\n"]
    if error.__traceback__ is not None:
        parts += ["Traceback (most recent call last):"]
        parts += [line.rstrip("\n") for line in traceback.format_tb(error.__traceback__)]
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    parts.append(f"{name}: {error}" if isinstance(error, _SAFE_ERRORS) else name)
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        if id(inner) not in seen:
            parts.append(indent(_error_text(inner, seen), "  | ", lambda line: True))
    return "\n".join(parts)
