"""A run that writes training data: a target's answers to prompts, in shards of one directory.

A shard is a function of the prompts, the settings and its number. Its file appears whole or not at
all, so that a run that was stopped goes on where it was.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, TrainingError
from slipstream.files import json_lines, make_folder, write_whole
from slipstream.models.dtypes import AUTO, CPU
from slipstream.models.format.digests import weights_digest
from slipstream.models.format.resolve import resolve, short_name
from slipstream.models.format.tokenizer import find_tokenizer
from slipstream.models.loaded import find_sources
from slipstream.models.loading import load_model, sizes_of
from slipstream.models.threads import set_num_threads
from slipstream.options import option, required
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.answers import BulkTarget, Talk, conversations
from slipstream.train.data import encoded, read_lines
from slipstream.verifying.build import MAX_ROWS, TargetLimits, build_target

MANIFEST_NAME = "manifest.json"
_COMMON_PROMPT_TOKENS = 200
"""A batch holds as much as full rows of prompts this long; longer ones get fewer rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRun:
    """Answers of a target to prompts, which go into a directory."""

    target: str = required("Target model: an alias, a path or a hub id.")
    prompts: tuple[Path, ...] = required(
        "JSON lines (.jsonl, .jsonl.gz) of prompt, turns or p (ids); repeatable."
    )
    out: Path = required("Directory of the shards; an earlier run is continued there.")
    device: str = option(CPU, "cpu, cuda or cuda:N.")
    dtype: str = option(
        AUTO, "auto, bfloat16, float16, float32, or 8 bits: q8 (CPUs) or fp8 (GPUs)."
    )
    threads: int | None = option(None, "CPU threads of each process.", min=1)
    max_new_tokens: int = option(160, "Longest answer, in tokens.", min=1)
    temperatures: str = option("0:0.5,0.7:0.2,1:0.3", "Temperatures and their weights.")
    batch: int = option(128, "Conversations decoded together.", min=1)
    max_prompt_tokens: int = option(
        864, "Longest prompt, in tokens; longer ones are left out.", min=1
    )
    seed: int = option(0, "Seed of temperatures, order and samples.", min=0)

    def __post_init__(self) -> None:
        for temperature, weight in self.weighted_temperatures():
            if not 0 <= temperature <= 100:
                raise TrainingError(f"the temperature is {temperature}, not within 0..100")
            if not 0 < weight < float("inf"):
                raise TrainingError(
                    f"the weight of temperature {temperature} is {weight}, not over 0"
                )

    def weighted_temperatures(self) -> tuple[tuple[float, float], ...]:
        """Return the numbers of 0:0.5,1:0.5; a temperature without a weight has weight 1."""
        pairs = [part.partition(":") for part in self.temperatures.split(",")]
        try:
            return tuple((float(value), float(weight or 1)) for value, _, weight in pairs)
        except ValueError:
            raise TrainingError(
                f"temperatures must be numbers with weights as 0:0.5,1:0.5, got"
                f" {self.temperatures!r}"
            ) from None


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Conversations of each shard, what they depend on, and the number of prompts too long."""

    shards: tuple[tuple[Talk, ...], ...]
    manifest: Mapping[str, Any]
    num_skipped: int


def make_plan(run: DataRun) -> DataPlan:
    """Return what belongs into which shard; loads no weights."""
    path = resolve(run.target)
    tokenizer = find_tokenizer(*find_sources(path)).text
    talks, digests = list[Talk](), list[list[str]]()
    for file in run.prompts:
        if not file.name.endswith((".jsonl", ".jsonl.gz")):
            raise TrainingError(f"{file} is none of .jsonl, .jsonl.gz")
        raw, lines = read_lines(file)
        digests.append([file.name, hashlib.sha256(raw).hexdigest()])
        talks += _talks(file, lines, tokenizer)
    kept = [talk for talk in talks if len(talk.prompt) <= run.max_prompt_tokens]
    if not kept:
        raise TrainingError("there is no prompt to answer")
    names = ("dtype", "max_new_tokens", "temperatures", "batch", "max_prompt_tokens", "seed")
    manifest = {
        "target": short_name(run.target),
        "weights": weights_digest(path),
        "tokenizer": tokenizer.vocab_hash,
        "chat_template": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest(),
        "files": digests,
        **{name: getattr(run, name) for name in names},
    }
    return DataPlan(make_shards(kept, run), manifest, len(talks) - len(kept))


def make_shards(talks: Sequence[Talk], run: DataRun) -> tuple[tuple[Talk, ...], ...]:
    """Return batches of conversations of similar length and number of turns, each with a
    temperature, so ordered that any beginning is a fair sample."""
    rng = random.Random(run.seed)
    values, weights = zip(*run.weighted_temperatures(), strict=True)
    drawn = [replace(talk, temperature=float(rng.choices(values, weights)[0])) for talk in talks]
    room = run.batch * (_COMMON_PROMPT_TOKENS + run.max_new_tokens)
    shards: list[list[Talk]] = []
    for talk in sorted(drawn, key=lambda talk: (len(talk.turns), len(talk.prompt))):
        last, num_tokens = shards[-1] if shards else [], len(talk.prompt) + run.max_new_tokens
        fits = len(last) < run.batch and (len(last) + 1) * num_tokens <= room
        if last and fits and len(last[0].turns) == len(talk.turns):
            last.append(talk)
        else:
            shards.append([talk])
    rng.shuffle(shards)
    return tuple(map(tuple, shards))


def _talks(path: Path, lines: Sequence[str], tokenizer: TextTokenizer) -> Iterator[Talk]:
    """Parse {"prompt": text}, {"turns": [text, ...]} or {"p": [id, ...]}; "g" is answered anew."""
    for where, item in json_lines(lines, str(path), TrainingError):
        fields = item if isinstance(item, dict) else {}
        turns = [fields["prompt"]] if "prompt" in fields else fields.get("turns", [fields.get("p")])
        kind = str if "prompt" in fields or "turns" in fields else list
        if not isinstance(turns, list) or not turns or not all(isinstance(t, kind) for t in turns):
            raise TrainingError(f'{where} has no "prompt" of text, "turns" of texts or "p" of ids')
        opening, *rest = turns
        yield Talk(tuple(encoded(opening, where, partial(encode_prompt, tokenizer))), tuple(rest))


def write_data(
    run: DataRun,
    plan: DataPlan,
    *,
    clock: Callable[[], float],
    report: Callable[[int, int, float], None],
) -> int:
    """Write all shards that are not finished; return how many there are. `report` is called behind
    each, with the number of finished ones, and the tokens of this run, in all and per second."""
    _prepare(run.out, plan.manifest)
    left = [shard for shard in range(len(plan.shards)) if not _path(run.out, shard).is_file()]
    done = len(plan.shards) - len(left)
    start, num_tokens = clock(), 0
    for written in _shards(run, plan, left) if left else ():
        done, num_tokens = done + 1, num_tokens + written
        report(done, num_tokens, num_tokens / max(clock() - start, 1e-9))
    return done


def _shards(run: DataRun, plan: DataPlan, numbers: Sequence[int]) -> Iterator[int]:
    """Write the shards of these numbers, and yield the tokens that the target wrote in each; the
    same conversations give the same bytes."""
    if run.threads is not None:
        set_num_threads(run.threads)
    target = load_model(run.target, dtype=run.dtype, device=run.device)
    needed = run.max_prompt_tokens + run.max_new_tokens
    if needed > (limit := sizes_of(target.model).context_length):
        raise InvalidRequest(
            f"prompts and answers may have {needed} tokens together, but the context of "
            f"{target.model_id} has {limit}"
        )
    # Without a prefix cache, so that no shard depends on those before it.
    limits = TargetLimits(run.batch, max_cached_bytes=0, max_rows=max(run.batch, MAX_ROWS))
    engine = build_target(target, numerics="fast", limits=limits).target
    bulk = BulkTarget(engine, target.stop_token_ids, run.max_new_tokens, limits.max_rows)
    for number in numbers:
        lines = conversations(
            bulk,
            target.tokenizer,
            plan.shards[number],
            seed=random.Random(f"{run.seed}:{number}").getrandbits(63),
            max_prompt_tokens=run.max_prompt_tokens,
        )
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        _prepare(run.out, plan.manifest)  # another process may have begun there meanwhile
        write_whole(_path(run.out, number), gzip.compress(text.encode(), mtime=0), mode=0o644)
        yield sum(len(line["g"]) for line in lines)


def _prepare(out: Path, manifest: Mapping[str, Any]) -> None:
    """Make a directory for shards of a manifest. Raises `TrainingError` where those of another one
    are. Several processes may write there, each shard whole."""
    path, text = out / MANIFEST_NAME, (json.dumps(manifest, indent=2) + "\n").encode()
    make_folder(out)
    if not any(out.glob("shard-*")):
        write_whole(path, text, mode=0o644)
    elif not path.is_file() or path.read_bytes() != text:
        raise TrainingError(f"{out} holds shards of other settings: {MANIFEST_NAME} there has them")


def _path(out: Path, number: int) -> Path:
    return out / f"shard-{number:06d}.jsonl.gz"
