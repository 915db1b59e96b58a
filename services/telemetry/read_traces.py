"""Spans of a directory of trace files: OTLP/JSON lines of any exporter. Needs no OpenTelemetry."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.traces import Link, Span, SpanKind, Status

_KINDS = tuple(SpanKind)
_STATUSES = tuple(Status)


def read_spans(directory: Path) -> list[Span]:
    """Return every span in the directory's *.jsonl files, in order of writing within each.

    A last line that is only half written is left out. Raises `InvalidRequest` for a directory or
    file that can't be read, and for a line that is no line of traces.
    """
    if not directory.is_dir():
        raise InvalidRequest(f"there is no directory {directory}")
    return [span for file in sorted(directory.glob("*.jsonl")) for span in _spans_of(file)]


def _spans_of(file: Path) -> Iterator[Span]:
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:  # renamed since it was listed
        return
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield from _spans(json.loads(line.strip() or b"{}"))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                return  # it is being written
            what = f"{type(error).__name__}: {error}"
            raise InvalidRequest(
                f"line {number} of {file} holds no traces in OTLP/JSON ({what})"
            ) from None


def _spans(data: Any) -> Iterator[Span]:
    for resource in data.get("resourceSpans", ()):
        about = _attributes(resource.get("resource", {}))
        service = str(about.get("service.name", "unknown"))
        process = str(about.get("service.instance.id", ""))
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield _span(span, service, process)


def _span(values: Mapping[str, Any], service: str, process: str) -> Span:
    status = values.get("status", {})
    return Span(
        trace_id=_id(values["traceId"], 16),
        span_id=_id(values["spanId"], 8),
        parent_id=_id(values["parentSpanId"], 8) if values.get("parentSpanId") else None,
        name=str(values.get("name", "")),
        kind=_KINDS[values.get("kind", 0)],
        service=service,
        process=process,
        start_ns=int(values["startTimeUnixNano"]),
        end_ns=int(values["endTimeUnixNano"]),
        attributes=_attributes(values),
        links=tuple(_link(link) for link in values.get("links", ())),
        status=_STATUSES[status.get("code", 0)],
        error=status.get("message") or None,
    )


def _link(values: Mapping[str, Any]) -> Link:
    return Link(_id(values["traceId"], 16), _id(values["spanId"], 8), _attributes(values))


def _id(text: str, num_bytes: int) -> str:
    """Return an id in lower case. Raises `ValueError` for anything else."""
    if len(bytes.fromhex(text)) != num_bytes:
        raise ValueError(f"an id is {text!r}, but must be {num_bytes} bytes in hex")
    return text.lower()


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    return {item["key"]: _value(item.get("value", {})) for item in values.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    """Return the value; None for one of no kind, or of a kind that is not known here."""
    for kind, held in value.items():
        if kind in _READERS:
            return _READERS[kind](held)
    return None


_READERS: dict[str, Callable[[Any], Any]] = {
    "stringValue": str,
    "boolValue": bool,
    "intValue": int,
    "doubleValue": float,
    "bytesValue": base64.b64decode,
    "arrayValue": lambda held: tuple(_value(item) for item in held.get("values", ())),
    "kvlistValue": lambda held: _attributes({"attributes": held.get("values", ())}),
}
