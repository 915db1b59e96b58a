"""A run that writes training data, from files of prompts to a directory of shards.

Progress goes out through `DataHooks`.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.models.dtypes import AUTO, CPU
from slipstream.models.loading import find_sources, load_model, load_tokenizer
from slipstream.models.native.source import WeightSource
from slipstream.models.store.resolve import resolve, short_name
from slipstream.models.target.batch import BatchModel
from slipstream.models.target.causal import sizes_of
from slipstream.models.target.native_batch import NativeBatchModel
from slipstream.models.threads import set_num_threads
from slipstream.models.tokenizer import text_tokenizer
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.author import MAX_SELF_PROMPT_TOKENS, Author, BatchDecoder, Vocabulary
from slipstream.train.shards import DataSettings, Shard, ShardStore, make_shards
from slipstream.train.sources import TextSources, read_sources

_FORMAT = 1
_WEIGHTS = ("*.safetensors", "*.gguf")


@dataclass(frozen=True, slots=True)
class Written:
    """A finished shard, and how many tokens the target wrote."""

    number: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """Progress after a shard: shards of all processes, tokens of this run, seconds to the end."""

    num_done: int
    num_shards: int
    num_tokens: int
    tokens_per_second: float
    seconds_left: float


class Tally:
    """Count of what all processes have written."""

    def __init__(self, shards: Sequence[Shard], store: ShardStore, max_tokens: int | None) -> None:
        """`max_tokens` is of all shards together; those that are finished already count."""
        self._costs = {shard.number: shard.cost for shard in shards}
        self._store = store
        self._max_tokens = max_tokens
        self._tokens: dict[int, int] = {}
        self._num_own = 0
        self.done: set[int] = set()
        self.update(None)
        self._before = (self._cost_left(), sum(self._tokens.values()))

    def update(self, written: Written | None) -> None:
        """Count what is finished by now; `written` is a shard of this run's own."""
        if written is not None:
            self._num_own += written.num_tokens
            self._tokens[written.number] = written.num_tokens
        self.done = self._store.done()
        if self._max_tokens is not None:
            for number in self.done - self._tokens.keys():
                self._tokens[number] = self._store.num_generated(number)

    def is_enough(self) -> bool:
        """Return whether as many tokens are generated as are wanted."""
        return self._max_tokens is not None and sum(self._tokens.values()) >= self._max_tokens

    def report(self, elapsed_seconds: float) -> DataReport:
        """Return the progress, `elapsed_seconds` after the first shard of this run was begun."""
        rate = self._num_own / elapsed_seconds if elapsed_seconds else 0.0
        left = elapsed_seconds * self._share_left()
        return DataReport(len(self.done), len(self._costs), self._num_own, rate, left)

    def _share_left(self) -> float:
        """Return what is left, in multiples of what all have done since the start."""
        cost_left, cost_before = self._cost_left(), self._before[0]
        shares = [cost_left / max(1, cost_before - cost_left)]
        if self._max_tokens is not None:
            num_tokens = sum(self._tokens.values())
            num_left = max(0, self._max_tokens - num_tokens)
            shares.append(num_left / max(1, num_tokens - self._before[1]))
        return min(shares)

    def _cost_left(self) -> int:
        return sum(cost for number, cost in self._costs.items() if number not in self.done)


_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DataRun:
    """Answers of `target` to the prompts in `files`, which go into the directory `out`.

    max_tokens: no further shard is begun once so many tokens are generated, those of earlier
    runs included. num_threads: CPU threads of each process; None: one a core.
    """

    target: str
    files: tuple[Path, ...]
    out: Path
    settings: DataSettings
    device: str = CPU
    dtype: str = AUTO
    max_tokens: int | None = None
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise TrainingError(f"max_tokens is {self.max_tokens}, it must be at least 1")


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Shards of a run, and how many of its prompts are too long for it."""

    shards: tuple[Shard, ...]
    manifest: dict[str, Any]
    num_skipped: int


@dataclass(frozen=True, slots=True)
class DataHooks:
    """Callbacks of a run: the time in seconds, the plan, and each shard that is done."""

    clock: Callable[[], float]
    plan: Callable[[ShardPlan], None]
    report: Callable[[DataReport], None]


@dataclass(frozen=True, slots=True)
class DataOutcome:
    """End of a run: shards that are finished, shards that other processes are writing."""

    num_done: int
    num_shards: int
    num_taken: int


def make_plan(run: DataRun) -> ShardPlan:
    """Return what belongs into which shard; loads no weights."""
    path = resolve(run.target)
    tokenizer = text_tokenizer(load_tokenizer(*find_sources(path)))
    sources = read_sources(run.files, tokenizer, run.settings.sources)
    shards = make_shards(sources, run.settings)
    manifest = _manifest(run, path, tokenizer, sources)
    return ShardPlan(shards, manifest, sources.num_skipped)


class Worker:
    """Target of a process, which writes one shard after the other into the directory."""

    def __init__(self, run: DataRun, shards: tuple[Shard, ...]) -> None:
        """Load the target. `InvalidRequest` when its context is too short for the settings."""
        if run.num_threads is not None:
            set_num_threads(run.num_threads)
        target = load_model(run.target, dtype=run.dtype, device=run.device)
        needed = run.settings.sources.max_prompt_tokens + run.settings.max_new_tokens
        if needed > (limit := sizes_of(target.model).context_length):
            raise InvalidRequest(
                f"prompts and answers may have {needed} tokens together, but the context of "
                f"{target.model_id} has {limit}"
            )
        ends, tokenizer = target.stop_token_ids, text_tokenizer(target.tokenizer)
        words = Vocabulary(tokenizer, ends, ends | tokenizer.added_ids)
        self._author = Author(_decoder(target.model, run.settings), words, run.settings)
        self._shards = shards
        self._store = ShardStore(run.out)

    def write(self, number: int) -> Written | None:
        """Write a shard; None when it is finished already or another process is writing it."""
        with self._store.claim(number) as is_ours:
            if not is_ours:
                return None
            lines = self._author.lines(self._shards[number])
            self._store.write(number, lines)
        return Written(number, sum(len(line["g"]) for line in lines))


def _decoder(model: Any, settings: DataSettings) -> BatchDecoder:
    if not isinstance(model, WeightSource):
        return BatchModel(model)
    longest = max(settings.max_new_tokens, MAX_SELF_PROMPT_TOKENS)
    return NativeBatchModel(model, max_new_tokens=longest)


Spread = Callable[[DataRun, ShardPlan, Sequence[int]], Iterator[Written | None]]
"""Function that writes the shards of these numbers, in any order, one per step."""


def write_here(run: DataRun, plan: ShardPlan, numbers: Sequence[int]) -> Iterator[Written | None]:
    """Write shards in this process."""
    return map(Worker(run, plan.shards).write, numbers)


def write_data(run: DataRun, hooks: DataHooks, *, spread: Spread = write_here) -> DataOutcome:
    """Write all shards that are not finished, or as many as `run.max_tokens` needs."""
    plan = make_plan(run)
    store = ShardStore(run.out)
    store.bind(plan.manifest)
    hooks.plan(plan)
    tally = Tally(plan.shards, store, run.max_tokens)
    left = [shard.number for shard in plan.shards if shard.number not in tally.done]
    if left and not tally.is_enough():
        results = spread(run, plan, left)
        start = hooks.clock()
        for written in results:
            tally.update(written)
            if written is not None:
                hooks.report(tally.report(hooks.clock() - start))
            if tally.is_enough():
                break
    num_left = 0 if tally.is_enough() else len(plan.shards) - len(tally.done)
    return DataOutcome(len(tally.done), len(plan.shards), num_left)


def _manifest(
    run: DataRun, path: Path, tokenizer: TextTokenizer, sources: TextSources
) -> dict[str, Any]:
    """Return all that shards depend on, by name; what differs is named in an error."""
    settings = asdict(run.settings)
    return {
        "format": _FORMAT,
        "target": short_name(run.target),
        "dtype": run.dtype,
        "weights": _weights_mark(path),
        "tokenizer": tokenizer.vocab_hash,
        "chat_template": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest(),
        "files": [list(digest) for digest in sources.digests],
        **settings.pop("sources"),
        **settings,
    }


def _weights_mark(path: Path) -> str:
    """Return a hash of sizes and both ends of the weights' files: a full one takes minutes."""
    files = [path] if path.is_file() else sorted(f for kind in _WEIGHTS for f in path.glob(kind))
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            digest.update(content.read(_SAMPLE_BYTES))
            content.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()
