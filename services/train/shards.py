"""Which conversations go into which shard: a function of inputs, settings and seed alone.

Knows nothing of files or models.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import TrainingError
from slipstream.train.sources import Ids, Sources, SourceSettings, Talk

_COMMON_PROMPT_TOKENS = 200
"""A batch holds as much as full rows of prompts this long; longer ones get fewer rows."""
_TEXTS_PER_SHARD = 4096


@dataclass(frozen=True, slots=True)
class DataSettings:
    """All that decides what the shards hold, besides the target and the input files.

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
        _check_law(self.temperatures)
        for name in ("max_new_tokens", "batch", "samples_per_prompt"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.num_self_prompts < 0 or self.seed < 0:
            raise TrainingError("num_self_prompts and seed must not be negative")


@dataclass(frozen=True, slots=True)
class Job:
    """A conversation and the temperature of its answers."""

    talk: Talk
    temperature: float


@dataclass(frozen=True, slots=True)
class Shard:
    """One of: conversations to have, texts to take as they are, user turns to write and answer."""

    number: int
    jobs: tuple[Job, ...] = ()
    texts: tuple[Ids, ...] = ()
    num_self_prompts: int = 0

    @property
    def cost(self) -> int:
        """How long it takes, in conversations."""
        return len(self.jobs) + 2 * self.num_self_prompts

    def seed(self, base: int) -> int:
        """Of its random numbers; `base` is the settings' seed."""
        digest = hashlib.sha256(f"{base}:{self.number}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


def make_shards(sources: Sources, settings: DataSettings) -> tuple[Shard, ...]:
    """All shards, conversations first, in an order in which any beginning is a fair sample."""
    rng = random.Random(settings.seed)
    jobs = [
        Job(talk, draw_temperature(settings, rng))
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
    """One of the settings' temperatures."""
    values, weights = zip(*settings.temperatures, strict=True)
    return float(rng.choices(values, weights)[0])


def _batches(jobs: Sequence[Job], settings: DataSettings) -> Iterator[tuple[Job, ...]]:
    """Conversations of similar length and number of turns together: little padding."""
    room = settings.batch * (_COMMON_PROMPT_TOKENS + settings.max_new_tokens)
    batch: list[Job] = []
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


def _check_law(temperatures: Sequence[tuple[float, float]]) -> None:
    if not temperatures:
        raise TrainingError("at least one temperature is needed")
    for temperature, weight in temperatures:
        if not 0 <= temperature <= 100:
            raise TrainingError(f"the temperature is {temperature}, not within 0..100")
        if not 0 < weight < float("inf"):
            raise TrainingError(f"the weight of temperature {temperature} is {weight}, not over 0")
