"""A directory of shards: what belongs in it, what is finished, who is writing which.

A shard's file appears whole or not at all. A lock belongs to a process and ends with it, so that
nothing is left behind by one that was killed. Knows nothing of what shards hold.
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slipstream.core.errors import TrainingError
from slipstream.train.data import parse_line, read_lines

MANIFEST_NAME = "manifest.json"


class ShardStore:
    """The finished shards in a directory, and the right to write the others."""

    def __init__(self, directory: Path) -> None:
        """Any number of processes may have a store over one directory."""
        self._directory = directory
        self._locks = directory / "locks"

    def bind(self, manifest: Mapping[str, Any]) -> None:
        """Begin a directory for a manifest, or go on with one.

        Raises TrainingError, naming what differs, for a directory of another manifest.
        """
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"{self._directory} can't be written: {error}") from None
        path = self._directory / MANIFEST_NAME
        with FileLock(self._locks / "manifest"):
            if path.is_file():
                self._compare(path, json.loads(json.dumps(manifest)))
            elif any(self._directory.glob("shard-*")):
                raise TrainingError(f"{self._directory} holds shards but no {MANIFEST_NAME}")
            else:
                _write(path, (json.dumps(manifest, indent=2) + "\n").encode())

    def done(self) -> set[int]:
        """The numbers of all shards that are finished."""
        names = (path.name for path in self._directory.glob("shard-*.jsonl.gz"))
        return {int(name[len("shard-") : -len(".jsonl.gz")]) for name in names}

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Whether the shard is ours to write, while we are inside; False if it is done or taken."""
        lock = FileLock(self._locks / f"{number:06d}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        try:
            yield not self._path(number).is_file()
        finally:
            if self._path(number).is_file():
                # Whoever still waits at this file looks for the shard once it has the lock.
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    def write(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """The shard as a file; the same lines give the same bytes."""
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        _write(self._path(number), gzip.compress(text.encode(), mtime=0))

    def num_generated(self, number: int) -> int:
        """Tokens that the target wrote in a finished shard."""
        path = self._path(number)
        _, lines = read_lines(path)
        return sum(len(parse_line(line, str(path))["g"]) for line in lines if line)

    def _path(self, number: int) -> Path:
        return self._directory / f"shard-{number:06d}.jsonl.gz"

    def _compare(self, path: Path, wanted: Mapping[str, Any]) -> None:
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{path} can't be read: {error}") from None
        for name in [*wanted, *(found if isinstance(found, dict) else ())]:
            here = found.get(name) if isinstance(found, dict) else found
            if here != wanted.get(name):
                raise TrainingError(
                    f"{self._directory} holds shards of another run: {name} is "
                    f"{json.dumps(here)} there and {json.dumps(wanted.get(name))} here"
                )


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)
