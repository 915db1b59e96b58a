"""Configurations of other systems and of Slipstream, by name. Pure; loads nothing.

Those of Slipstream are methods of `bench speed`, run in one process, and `distributed:METHOD`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.bench.harness import parse_names
from slipstream.bench.methods import Method, parse_method
from slipstream.core.errors import InvalidRequest, UnsupportedCombination


class System(StrEnum):
    """System that answers."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    EMBEDDED = "embedded"
    DISTRIBUTED = "distributed"


class Mode(StrEnum):
    """Decoding of a system that is not ours."""

    PLAIN = "plain"
    LOOKUP = "lookup"
    ASSISTANT = "assistant"


BASE = "hf"
"""The configuration that all ratios are over."""
BEST = "best"
_DISTRIBUTED = "distributed:"
_ROUTED = frozenset({"plain", "glide", "best"})
OURS = (
    *("plain", "plain+invariant", "ngram", "glide", "glide+cape", "glide+svip"),
    *("glide+cape+svip", "glide+cape+decision", "glide+cape+cost", BEST),
    *(f"{_DISTRIBUTED}plain", f"{_DISTRIBUTED}{BEST}"),
)
REFERENCES = ("plain+invariant", "plain", f"{_DISTRIBUTED}plain")
"""Configurations whose tokens others are compared with: the first of them that runs."""
_CONCURRENT = frozenset({"plain", BEST, f"{_DISTRIBUTED}plain", f"{_DISTRIBUTED}{BEST}"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """System and its setting. `method` is Slipstream's own, `mode` and the rest the others'."""

    name: str
    system: System
    method: Method | None = None
    mode: Mode = Mode.PLAIN
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
        is_single = self.system is System.LLAMA_CPP or self.mode is not Mode.PLAIN
        return not is_single


_PEERS = {
    config.name: config
    for config in (
        Configuration(BASE, System.TRANSFORMERS),
        Configuration("hf-lookup", System.TRANSFORMERS, mode=Mode.LOOKUP),
        Configuration("hf-assistant", System.TRANSFORMERS, mode=Mode.ASSISTANT),
        Configuration("llama.cpp", System.LLAMA_CPP),
        Configuration("llama.cpp-lookup", System.LLAMA_CPP, mode=Mode.LOOKUP),
        Configuration("llama.cpp-bf16", System.LLAMA_CPP, is_full=True),
        Configuration("llama.cpp-bf16-lookup", System.LLAMA_CPP, mode=Mode.LOOKUP, is_full=True),
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
