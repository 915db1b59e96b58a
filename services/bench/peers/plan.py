"""Plan of a comparison with other engines: prompts, configurations, batches. Pure."""

import math
from dataclasses import dataclass
from itertools import cycle, islice

from slipstream.bench.harness import parse_numbers, require_at_least
from slipstream.bench.peers.configurations import Configuration
from slipstream.core.errors import InvalidRequest

MAX_LEVEL = 64


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Question as every configuration gets it."""

    question_id: int | str
    category: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """Concurrency, its configurations and batches."""

    concurrency: int
    configs: tuple[Configuration, ...]
    batches: tuple[tuple[PromptIds, ...], ...]
    """Requests that are sent together."""


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """Plan of all levels. At a concurrency above 1, fewer configurations get fewer prompts."""

    prompts: tuple[PromptIds, ...]
    configs: tuple[Configuration, ...]
    concurrent: tuple[Configuration, ...]
    concurrencies: tuple[int, ...] = (1,)
    concurrent_limit: int = 16
    """Prompts at each concurrency above 1, rounded up to whole batches."""
    max_new_tokens: int = 128
    warmup: int = 1
    settle_s: float = 0.05
    """Pause between two configurations, in which threads of the one before fall asleep."""

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=2, warmup=0, concurrent_limit=1)
        if not 0 <= self.settle_s <= 10:
            raise InvalidRequest(f"settle_s is {self.settle_s:g}, but must be 0 to 10")
        if not self.prompts or not self.configs:
            raise InvalidRequest("there must be at least one prompt and one configuration")

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return what is run at each concurrency, one after the other."""
        return tuple(map(self._level, self.concurrencies))

    @property
    def num_steps(self) -> int:
        """Return the batches of all configurations, warm-up included."""
        return sum(len(at.configs) * (self.warmup + len(at.batches)) for at in self.levels)

    @property
    def num_positions(self) -> int:
        """Return the tokens that the longest request may hold."""
        return max(len(prompt.token_ids) for prompt in self.prompts) + self.max_new_tokens

    def _level(self, concurrency: int) -> Level:
        if concurrency == 1:
            return Level(1, self.configs, tuple((prompt,) for prompt in self.prompts))
        count = math.ceil(self.concurrent_limit / concurrency)
        endless = cycle(self.prompts)
        batches = tuple(tuple(islice(endless, concurrency)) for _ in range(count))
        return Level(concurrency, self.concurrent, batches)


def parse_concurrencies(text: str) -> tuple[int, ...]:
    """Parse numbers with commas between, each once. Raises `InvalidRequest`."""
    found = parse_numbers("concurrency", text, int)
    if len(set(found)) != len(found) or not all(1 <= value <= MAX_LEVEL for value in found):
        raise InvalidRequest(
            f"concurrency is {text!r}, but must be numbers from 1 to {MAX_LEVEL}, each once"
        )
    return found
