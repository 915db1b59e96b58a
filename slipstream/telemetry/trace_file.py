"""Spans appended to a file, as OTLP/JSON lines: what any collector, and `slipstream trace`, reads.

(OpenTelemetry protocol file exporter: a TracesData message per line.) A full file is kept under
a second name until the next one is full.
"""

import base64
import fcntl
import json
import logging
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slipstream.core.errors import InvalidRequest, check

MAX_BYTES = 16 << 20
_IDS = ("traceId", "spanId", "parentSpanId")
_LOG = logging.getLogger("slipstream.telemetry")


def otlp_json(message: Message) -> dict[str, Any]:
    """Return a message of spans, such as TracesData, in OTLP/JSON."""
    data = MessageToDict(message, use_integers_for_enums=True)
    scopes = (scope for resource in data["resourceSpans"] for scope in resource["scopeSpans"])
    for span in (span for scope in scopes for span in scope["spans"]):
        for values in (span, *span.get("links", ())):  # OTLP has ids in hex, Protobuf in base64
            values |= {
                name: base64.b64decode(values[name]).hex() for name in _IDS if name in values
            }
    return data


class FileSpanExporter(SpanExporter):
    """Append every batch to DIRECTORY/NAME.jsonl; any number of processes may share the file.

    Before a line that would take it past `max_bytes` the file is renamed to NAME.1.jsonl,
    in place of the one before. Only the user who wrote them can read files and directory.
    Raises `InvalidRequest` when the directory can't be made or written in.
    """

    def __init__(self, directory: Path, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        check(max_bytes >= 1, "max_bytes", max_bytes, "at least 1")
        self._path = directory / f"{name}.jsonl"
        self._full = directory / f"{name}.1.jsonl"
        self._max_bytes = max_bytes
        self._is_failing = False
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _opened(self._path).close()
        except OSError as error:
            raise InvalidRequest(
                f"traces can't be written to {self._path} ({error.strerror})"
            ) from None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans. The first failure of several is logged."""
        line = json.dumps(otlp_json(encode_spans(spans)), separators=(",", ":")).encode() + b"\n"
        try:
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX)  # released with the file
                size = self._path.stat().st_size if self._path.exists() else 0
                if size > 0 and size + len(line) > self._max_bytes:
                    self._path.rename(self._full)
                _append(self._path, line)
            finally:
                os.close(directory)
        except OSError as error:
            if not self._is_failing:
                _LOG.warning("traces can't be written to %s: %s", self._path, error.strerror)
            self._is_failing = True
            return SpanExportResult.FAILURE
        self._is_failing = False
        return SpanExportResult.SUCCESS


def _opened(path: Path) -> FileIO:
    """Return a file to read and append to, made if it is missing; only its owner can read it."""
    return FileIO(path, "a+", opener=lambda name, flags: os.open(name, flags, 0o600))


def _append(path: Path, line: bytes) -> None:
    """Write the whole line or nothing, in place of what a killed process left half-written."""
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            end = file.truncate(os.pread(file.fileno(), end, 0).rfind(b"\n") + 1)
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise
