"""What is asked of everybody, and in which order. Pure; knows nobody who answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from slipstream.bench.peers.arms import Arm
from slipstream.core.errors import InvalidRequest

WARMUP_TOKENS = 32
MAX_LEVEL = 64


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A question as every arm gets it."""

    question_id: int | str
    category: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """So many requests at once, by which arms."""

    concurrency: int
    arms: tuple[Arm, ...]
    batches: tuple[tuple[PromptIds, ...], ...]
    """Requests that are sent together."""


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """All that is measured. At a concurrency above 1, fewer arms get fewer prompts."""

    prompts: tuple[PromptIds, ...]
    arms: tuple[Arm, ...]
    concurrent: tuple[Arm, ...]
    concurrencies: tuple[int, ...] = (1,)
    concurrent_limit: int = 16
    """Prompts at each concurrency above 1, rounded up to whole batches."""
    max_new_tokens: int = 128
    warmup: int = 1
    settle_s: float = 0.05
    """Pause between two arms, in which threads of the one before fall asleep."""

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 2), ("warmup", 0), ("concurrent_limit", 1)):
            value = getattr(self, name)
            if value < least:
                raise InvalidRequest(f"{name} is {value}, but must be at least {least}")
        if not 0 <= self.settle_s <= 10:
            raise InvalidRequest(f"settle_s is {self.settle_s:g}, but must be 0 to 10")
        if not self.prompts or not self.arms:
            raise InvalidRequest("there must be at least one prompt and one arm")

    @property
    def levels(self) -> tuple[Level, ...]:
        """What is run at each concurrency, one after the other."""
        return tuple(map(self._level, self.concurrencies))

    @property
    def num_steps(self) -> int:
        """Batches of all arms, warm-up included."""
        return sum(len(at.arms) * (self.warmup + len(at.batches)) for at in self.levels)

    @property
    def num_positions(self) -> int:
        """Tokens that the longest request may hold."""
        return max(len(prompt.token_ids) for prompt in self.prompts) + self.max_new_tokens

    def _level(self, concurrency: int) -> Level:
        if concurrency == 1:
            return Level(1, self.arms, tuple((prompt,) for prompt in self.prompts))
        count = math.ceil(self.concurrent_limit / concurrency)
        endless = cycle(self.prompts)
        batches = tuple(tuple(islice(endless, concurrency)) for _ in range(count))
        return Level(concurrency, self.concurrent, batches)


def parse_concurrencies(text: str) -> tuple[int, ...]:
    """Numbers with commas between, each once. Raises `InvalidRequest`."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(f"concurrency is {text!r}, but must be as 1,4,16") from None
    if len(set(found)) != len(found) or not all(1 <= value <= MAX_LEVEL for value in found):
        raise InvalidRequest(
            f"concurrency is {text!r}, but must be numbers from 1 to {MAX_LEVEL}, each once"
        )
    return found


def rotated(arms: Sequence[Arm], by: int) -> tuple[Arm, ...]:
    """`arms` beginning with another one for each `by`."""
    start = by % len(arms)
    return (*arms[start:], *arms[:start])
