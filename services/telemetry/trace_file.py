"""Spans appended to a file, as OTLP/JSON lines: what any collector, and `slipstream trace`, reads.

(OpenTelemetry protocol file exporter: a TracesData message per line.) A full file is kept under
a second name until the next one is full. Knows nothing of what the spans say.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.otlp_json import traces_data

MAX_BYTES = 16 << 20
"""Of each of the two files."""
_LOG = logging.getLogger("slipstream.telemetry")


class FileSpanExporter(SpanExporter):
    """Appends every batch to DIRECTORY/NAME.jsonl; any number of processes may share the file.

    Before a line that would take it past `max_bytes` the file is renamed to NAME.1.jsonl,
    in place of the one before. Only the user who wrote them can read files and directory.
    Raises `InvalidRequest` when the directory can't be made or written in.
    """

    def __init__(self, directory: Path, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes < 1:
            raise InvalidRequest(f"max_bytes is {max_bytes}, but must be at least 1")
        self._path = directory / f"{name}.jsonl"
        self._full = directory / f"{name}.1.jsonl"
        self._max_bytes = max_bytes
        self._is_failing = False
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(_opened(self._path))
        except OSError as error:
            raise InvalidRequest(
                f"traces can't be written to {self._path} ({error.strerror})"
            ) from None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans. A disk that is full is told once to the log, not to who is traced."""
        line = json.dumps(traces_data(spans), separators=(",", ":")).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            if not self._is_failing:
                _LOG.warning("traces can't be written to %s: %s", self._path, error.strerror)
            self._is_failing = True
            return SpanExportResult.FAILURE
        self._is_failing = False
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is held open."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is held back."""
        return True

    def _append(self, line: bytes) -> None:
        with _locked(self._path) as file:
            size = os.fstat(file).st_size
            if not size or size + len(line) <= self._max_bytes:
                return _write(file, line)
            self._path.rename(self._full)
        with _locked(self._path) as file:
            _write(file, line)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file for appending, while nobody else appends to it."""
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):  # nobody has renamed it meanwhile
                yield file
                return
        finally:
            os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _write(file: int, line: bytes) -> None:
    """The whole line or nothing. What a process left half-written when it was killed goes."""
    end = _end_of_lines(file)
    os.ftruncate(file, end)
    try:
        done = 0
        while done < len(line):
            done += os.write(file, line[done:])
    except OSError:
        os.ftruncate(file, end)
        raise


def _end_of_lines(file: int) -> int:
    """Where the last whole line ends."""
    size = os.fstat(file).st_size
    if not size or os.pread(file, 1, size - 1) == b"\n":
        return size
    return os.pread(file, size, 0).rfind(b"\n") + 1
