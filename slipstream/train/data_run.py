"""A run that writes training data: a target's answers to prompts, in shards of one directory.

A shard is a function of the prompts, the settings and its number. Its file appears whole or not at
all, so that a run that was stopped goes on where it was.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.models.loading import load_model
from slipstream.models.native.source import WeightSource
from slipstream.models.target.batch import BatchModel
from slipstream.models.target.causal import sizes_of
from slipstream.models.target.native_batch import NativeBatchModel
from slipstream.models.threads import set_num_threads
from slipstream.models.tokenizer import text_tokenizer
from slipstream.train.answers import BatchDecoder, EndRules, conversations
from slipstream.train.data import parse_line, read_lines, write_whole
from slipstream.train.data_plan import DataPlan, DataRun, make_plan

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Written:
    """A finished shard, and how many tokens the target wrote."""

    number: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """Progress after a shard: finished ones, tokens of this run, seconds to the end."""

    num_done: int
    num_shards: int
    num_tokens: int
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True, slots=True)
class DataHooks:
    """Callbacks of a run: the time in seconds, the plan, and each shard that is done."""

    clock: Callable[[], float]
    plan: Callable[[DataPlan], None]
    report: Callable[[DataReport], None]


Spread = Callable[[DataRun, DataPlan, Sequence[int]], Iterator[Written]]
"""Function that writes the shards of these numbers, in any order, one per step."""


class Worker:
    """Target of a process, loaded when first needed, which writes one shard after the other."""

    def __init__(self, run: DataRun, plan: DataPlan) -> None:
        self._run, self._shards = run, plan.shards
        self._model: BatchDecoder | None = None

    def load(self) -> None:
        """Load the target. `InvalidRequest` when its context is too short for the settings."""
        run = self._run
        if run.threads is not None:
            set_num_threads(run.threads)
        target = load_model(run.target, dtype=run.dtype, device=run.device)
        needed = run.max_prompt_tokens + run.max_new_tokens
        if needed > (limit := sizes_of(target.model).context_length):
            raise InvalidRequest(
                f"prompts and answers may have {needed} tokens together, but the context of "
                f"{target.model_id} has {limit}"
            )
        self._tokenizer, self._ends = text_tokenizer(target.tokenizer), target.stop_token_ids
        if isinstance(target.model, WeightSource):
            self._model = NativeBatchModel(target.model, max_new_tokens=run.max_new_tokens)
        else:
            self._model = BatchModel(target.model)

    def write(self, number: int) -> Written:
        """Write a shard; the same conversations give the same bytes."""
        if self._model is None:
            self.load()
        assert self._model is not None
        lines = conversations(
            self._model,
            self._tokenizer,
            self._shards[number],
            EndRules(self._ends, self._run.max_new_tokens),
            seed=self._run.seed_of(number),
            max_prompt_tokens=self._run.max_prompt_tokens,
        )
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_whole(_path(self._run.out, number), gzip.compress(text.encode(), mtime=0))
        return Written(number, sum(len(line["g"]) for line in lines))


def write_here(run: DataRun, plan: DataPlan, numbers: Sequence[int]) -> Iterator[Written]:
    """Write shards in this process."""
    return map(Worker(run, plan).write, numbers)


def write_data(run: DataRun, hooks: DataHooks, *, spread: Spread = write_here) -> tuple[int, int]:
    """Write all shards that are not finished, or as many as `run.max_tokens` needs.

    Return how many are finished, and how many there are.
    """
    plan = make_plan(run)
    with _directory(run.out, plan.manifest):
        hooks.plan(plan)
        left = [shard for shard in range(len(plan.shards)) if not _path(run.out, shard).is_file()]
        done = len(plan.shards) - len(left)
        most = float("inf") if run.max_tokens is None else run.max_tokens - _num_generated(run.out)
        start, num_tokens = hooks.clock(), 0
        for count, written in enumerate(spread(run, plan, left) if left and most > 0 else (), 1):
            done, num_tokens = done + 1, num_tokens + written.num_tokens
            seconds = hooks.clock() - start
            rate, rest = num_tokens / max(seconds, 1e-9), seconds / count * (len(left) - count)
            hooks.report(DataReport(done, len(plan.shards), num_tokens, rate, rest))
            if num_tokens >= most:
                break
    return done, len(plan.shards)


@contextmanager
def _directory(out: Path, manifest: Mapping[str, Any]) -> Iterator[None]:
    """Lock a directory for this process alone. Raises `TrainingError` for the shards of another
    manifest."""
    lock, path = FileLock(out / "lock"), out / MANIFEST_NAME
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise TrainingError(f"{out} is being written by another process") from None
    except OSError as error:
        raise TrainingError(f"{out} can't be written: {error}") from None
    try:
        text = (json.dumps(manifest, indent=2) + "\n").encode()
        if not any(out.glob("shard-*")):
            write_whole(path, text)
        elif not path.is_file() or path.read_bytes() != text:
            raise TrainingError(
                f"{out} holds shards of other settings: {MANIFEST_NAME} there has them"
            )
        yield
    finally:
        lock.release()


def _num_generated(out: Path) -> int:
    """Return the tokens that the target wrote in the finished shards."""
    lines = [(path, line) for path in out.glob("shard-*.jsonl.gz") for line in read_lines(path)[1]]
    return sum(len(parse_line(line, str(path))["g"]) for path, line in lines if line)


def _path(out: Path, number: int) -> Path:
    return out / f"shard-{number:06d}.jsonl.gz"
