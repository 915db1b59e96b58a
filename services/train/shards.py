"""Shards of training data: which conversations go into which, and the directory that they are in.

A shard is a function of inputs, settings and seed. Its file appears whole or not at all. A lock
belongs to a process and ends with it, so that nothing is left behind by one that was killed.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slipstream.core.errors import TrainingError
from slipstream.train.data import parse_line, read_lines, write_json, write_whole
from slipstream.train.sources import Ids, SourceSettings, Talk, TextSources

_COMMON_PROMPT_TOKENS = 200
"""A batch holds as much as full rows of prompts this long; longer ones get fewer rows."""
_TEXTS_PER_SHARD = 4096
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Settings of the shards' contents, besides the target and the input files.

    temperatures: (temperature, weight) pairs that each conversation draws one from.
    num_self_prompts: user turns that the target is to write itself.
    """

    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.5), (0.7, 0.2), (1.0, 0.3))
    max_new_tokens: int = 160
    batch: int = 128
    samples_per_prompt: int = 1
    num_self_prompts: int = 0
    seed: int = 0
    sources: SourceSettings = field(default_factory=SourceSettings)

    def __post_init__(self) -> None:
        _check_temperatures(self.temperatures)
        for name in ("max_new_tokens", "batch", "samples_per_prompt"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.num_self_prompts < 0 or self.seed < 0:
            raise TrainingError("num_self_prompts and seed must not be negative")


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """A conversation and the temperature of its answers."""

    talk: Talk
    temperature: float


@dataclass(frozen=True, slots=True)
class Shard:
    """One of: conversations to have, texts to take as they are, user turns to write and answer."""

    number: int
    jobs: tuple[AnswerJob, ...] = ()
    texts: tuple[Ids, ...] = ()
    num_self_prompts: int = 0

    @property
    def cost(self) -> int:
        """Return its relative duration, in conversations."""
        return len(self.jobs) + 2 * self.num_self_prompts

    def seed(self, base: int) -> int:
        """Return the seed of its random numbers; `base` is the settings' seed."""
        digest = hashlib.sha256(f"{base}:{self.number}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


def make_shards(sources: TextSources, settings: DataSettings) -> tuple[Shard, ...]:
    """Return all shards, conversations first, so ordered that any beginning is a fair sample."""
    rng = random.Random(settings.seed)
    jobs = [
        AnswerJob(talk, draw_temperature(settings, rng))
        for talk in sources.talks
        for _ in range(settings.samples_per_prompt)
    ]
    parts: list[dict[str, object]] = [{"jobs": part} for part in _batches(jobs, settings)]
    for start in range(0, settings.num_self_prompts, settings.batch):
        num_rows = min(settings.batch, settings.num_self_prompts - start)
        parts.append({"num_self_prompts": num_rows})
    rng.shuffle(parts)
    for start in range(0, len(sources.texts), _TEXTS_PER_SHARD):
        parts.append({"texts": sources.texts[start : start + _TEXTS_PER_SHARD]})
    if not parts:
        raise TrainingError("there is no prompt to answer, no text and no self-prompt to write")
    return tuple(Shard(number, **part) for number, part in enumerate(parts))  # type: ignore[arg-type]


def draw_temperature(settings: DataSettings, rng: random.Random) -> float:
    """Return one of the settings' temperatures."""
    values, weights = zip(*settings.temperatures, strict=True)
    return float(rng.choices(values, weights)[0])


def _batches(jobs: Sequence[AnswerJob], settings: DataSettings) -> Iterator[tuple[AnswerJob, ...]]:
    """Yield batches of conversations of similar length and number of turns."""
    room = settings.batch * (_COMMON_PROMPT_TOKENS + settings.max_new_tokens)
    batch: list[AnswerJob] = []
    for job in sorted(jobs, key=lambda job: (len(job.talk.turns), len(job.talk.prompt))):
        num_tokens = len(job.talk.prompt) + settings.max_new_tokens
        is_full = (len(batch) + 1) * num_tokens > room
        is_other = bool(batch) and len(batch[0].talk.turns) != len(job.talk.turns)
        if batch and (is_full or is_other or len(batch) >= settings.batch):
            yield tuple(batch)
            batch = []
        batch.append(job)
    if batch:
        yield tuple(batch)


def _check_temperatures(temperatures: Sequence[tuple[float, float]]) -> None:
    if not temperatures:
        raise TrainingError("at least one temperature is needed")
    for temperature, weight in temperatures:
        if not 0 <= temperature <= 100:
            raise TrainingError(f"the temperature is {temperature}, not within 0..100")
        if not 0 < weight < float("inf"):
            raise TrainingError(f"the weight of temperature {temperature} is {weight}, not over 0")


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
                write_json(path, manifest)

    def done(self) -> set[int]:
        """Return the numbers of all shards that are finished."""
        names = (path.name for path in self._directory.glob("shard-*.jsonl.gz"))
        return {int(name[len("shard-") : -len(".jsonl.gz")]) for name in names}

    @contextmanager
    def claim(self, number: int) -> Iterator[bool]:
        """Yield whether the shard may be written in this context; False if it is done or taken."""
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
                # A process that waits for this lock looks for the shard once it has it.
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    def write(self, number: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the shard as a file; the same lines give the same bytes."""
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_whole(self._path(number), gzip.compress(text.encode(), mtime=0))

    def num_generated(self, number: int) -> int:
        """Return the tokens that the target wrote in a finished shard."""
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
