"""Plan of a comparison with other engines: configurations by name, prompts, batches.

Configurations of Slipstream are methods of `bench speed`, run in one process, and
`distributed:METHOD`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from slipstream.bench.harness import parse_names, parse_numbers, require_at_least
from slipstream.bench.methods import Method, parse_method
from slipstream.core.errors import InvalidRequest, UnsupportedCombination

MAX_LEVEL = 64
BASE = "hf"
"""The configuration that all ratios are over."""
BEST = "best"
_DISTRIBUTED = "distributed:"
OURS = (
    *("plain", "plain+invariant", "ngram", "glide", "glide+cape", "glide+svip"),
    *("glide+cape+svip", "glide+cape+decision", "glide+cape+cost", BEST),
    *(f"{_DISTRIBUTED}plain", f"{_DISTRIBUTED}{BEST}"),
)
REFERENCES = ("plain+invariant", "plain", f"{_DISTRIBUTED}plain")
"""Configurations whose tokens others are compared with: the first of them that runs."""


class System(StrEnum):
    """System that answers."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    EMBEDDED = "embedded"
    DISTRIBUTED = "distributed"


class PeerMode(StrEnum):
    """Decoding of a system that is not ours."""

    PLAIN = "plain"
    LOOKUP = "lookup"
    ASSISTANT = "assistant"


_ROUTED = frozenset({"plain", "glide", "best"})
_CONCURRENT = frozenset({"plain", BEST, f"{_DISTRIBUTED}plain", f"{_DISTRIBUTED}{BEST}"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """System and its setting. `method` is Slipstream's own, `mode` and the rest the others'."""

    name: str
    system: System
    method: Method | None = None
    mode: PeerMode = PeerMode.PLAIN
    is_full: bool = False
    """True for llama.cpp on weights that are not quantised."""
    url: str = ""

    @property
    def is_ours(self) -> bool:
        """Return whether Slipstream answers."""
        return self.method is not None

    @property
    def is_batching(self) -> bool:
        """Return whether requests that come together are computed together."""
        is_single = self.system is System.LLAMA_CPP or self.mode is not PeerMode.PLAIN
        return not is_single


_PEERS = {
    config.name: config
    for config in (
        Configuration(BASE, System.TRANSFORMERS),
        Configuration("hf-lookup", System.TRANSFORMERS, mode=PeerMode.LOOKUP),
        Configuration("hf-assistant", System.TRANSFORMERS, mode=PeerMode.ASSISTANT),
        Configuration("llama.cpp", System.LLAMA_CPP),
        Configuration("llama.cpp-lookup", System.LLAMA_CPP, mode=PeerMode.LOOKUP),
        Configuration("llama.cpp-bf16", System.LLAMA_CPP, is_full=True),
        Configuration(
            "llama.cpp-bf16-lookup", System.LLAMA_CPP, mode=PeerMode.LOOKUP, is_full=True
        ),
    )
}


def parse_endpoints(texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=URL into URLs by name. Raises `InvalidRequest` for anything else."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, url = text.partition("=")
        if not name or "," in name or not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"the endpoint is {text!r}, but must be NAME=http://HOST:PORT/v1")
        if name in found or name in _PEERS or name in OURS:
            raise InvalidRequest(f"the endpoint {name!r} has the name of another configuration")
        found[name] = url.rstrip("/")
    return found


def parse_configs(text: str, endpoints: Mapping[str, str]) -> tuple[Configuration, ...]:
    """Parse a list with commas; an empty one means all configurations.

    Raises `InvalidRequest` for a name that is unknown or comes twice.
    """
    names = parse_names(text, "configuration") if text.strip() else []
    return tuple(_config(name, endpoints) for name in names or [*_PEERS, *endpoints, *OURS])


def concurrent_configs(configs: Sequence[Configuration], text: str) -> tuple[Configuration, ...]:
    """Return the configurations that also answer several requests at once.

    By default all that are not ours, and of ours plain decoding and the default.
    """
    if not text.strip():
        return tuple(
            config for config in configs if not config.is_ours or config.name in _CONCURRENT
        )
    by_name = {config.name: config for config in configs}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise InvalidRequest(f"{name!r} is none of the configurations {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _config(name: str, endpoints: Mapping[str, str]) -> Configuration:
    if name in _PEERS:
        return _PEERS[name]
    if name in endpoints:
        return Configuration(name, System.OPENAI, url=endpoints[name])
    if name.startswith(_DISTRIBUTED):
        method = parse_method(name.removeprefix(_DISTRIBUTED))
        if method.base not in _ROUTED:
            raise UnsupportedCombination(
                f"configuration {name!r} needs another draft than the services have;"
                f" {_DISTRIBUTED}METHOD takes {', '.join(sorted(_ROUTED))} and their modifiers"
            )
        return Configuration(name, System.DISTRIBUTED, method)
    try:
        return Configuration(name, System.EMBEDDED, parse_method(name))
    except InvalidRequest as error:
        known = ", ".join([*_PEERS, *endpoints, f"{_DISTRIBUTED}METHOD"])
        raise type(error)(f"{error}; or a configuration: {known}") from None


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
