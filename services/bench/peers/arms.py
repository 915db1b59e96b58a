"""Who is measured: other systems and Slipstream's own methods, by name. Pure; loads nothing.

Slipstream's arms are methods of `bench speed`, run in one process, and `distributed:METHOD`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream.bench.methods import Method, parse_method
from slipstream.core.errors import InvalidRequest, UnsupportedCombination


class System(StrEnum):
    """What answers."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    EMBEDDED = "embedded"
    DISTRIBUTED = "distributed"


class Mode(StrEnum):
    """How a system that is not ours decodes."""

    PLAIN = "plain"
    LOOKUP = "lookup"
    ASSISTANT = "assistant"


BASE = "hf"
"""The arm that all ratios are over."""
BEST = "best"
_DISTRIBUTED = "distributed:"
_ROUTED = frozenset({"plain", "glide", "best"})
OURS = (
    "plain",
    "plain+invariant",
    "ngram",
    "glide",
    "glide+cape",
    "glide+svip",
    "glide+cape+svip",
    "glide+cape+decision",
    "glide+cape+cost",
    BEST,
    f"{_DISTRIBUTED}plain",
    f"{_DISTRIBUTED}{BEST}",
)
REFERENCES = ("plain+invariant", "plain", f"{_DISTRIBUTED}plain")
"""Whose tokens the others' are compared with: the first of them that runs."""
_CONCURRENT = frozenset({"plain", BEST, f"{_DISTRIBUTED}plain", f"{_DISTRIBUTED}{BEST}"})


@dataclass(frozen=True, slots=True)
class Arm:
    """One that is measured. `method` is of Slipstream's own, `mode` and the rest of the others."""

    name: str
    system: System
    method: Method | None = None
    mode: Mode = Mode.PLAIN
    is_full: bool = False
    """Of llama.cpp: whether weights are not quantised."""
    url: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether Slipstream answers."""
        return self.method is not None

    @property
    def is_batching(self) -> bool:
        """Whether requests that come together are computed together."""
        is_single = self.system is System.LLAMA_CPP or self.mode is not Mode.PLAIN
        return not is_single


_PEERS = {
    arm.name: arm
    for arm in (
        Arm(BASE, System.TRANSFORMERS),
        Arm("hf-lookup", System.TRANSFORMERS, mode=Mode.LOOKUP),
        Arm("hf-assistant", System.TRANSFORMERS, mode=Mode.ASSISTANT),
        Arm("llama.cpp", System.LLAMA_CPP),
        Arm("llama.cpp-lookup", System.LLAMA_CPP, mode=Mode.LOOKUP),
        Arm("llama.cpp-bf16", System.LLAMA_CPP, is_full=True),
        Arm("llama.cpp-bf16-lookup", System.LLAMA_CPP, mode=Mode.LOOKUP, is_full=True),
    )
}


def parse_endpoints(texts: Sequence[str]) -> dict[str, str]:
    """URLs by name, of NAME=URL. Raises `InvalidRequest` for anything else."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, url = text.partition("=")
        if not name or "," in name or not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"the endpoint is {text!r}, but must be NAME=http://HOST:PORT/v1")
        if name in found or name in _PEERS or name in OURS:
            raise InvalidRequest(f"the endpoint {name!r} has the name of another arm")
        found[name] = url.rstrip("/")
    return found


def parse_arms(text: str, endpoints: Mapping[str, str]) -> tuple[Arm, ...]:
    """The arms in a list with commas; all that there are, of an empty one.

    Raises `InvalidRequest` for a name that is unknown or comes twice.
    """
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"arm {name!r} is named twice")
    return tuple(_arm(name, endpoints) for name in names or [*_PEERS, *endpoints, *OURS])


def concurrent_arms(arms: Sequence[Arm], text: str) -> tuple[Arm, ...]:
    """Those of `arms` that also meet several requests at once.

    By default all that are not ours, and of ours plain decoding and the default.
    """
    if not text.strip():
        return tuple(arm for arm in arms if not arm.is_ours or arm.name in _CONCURRENT)
    by_name = {arm.name: arm for arm in arms}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in by_name:
            raise InvalidRequest(f"{name!r} is none of the arms {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _arm(name: str, endpoints: Mapping[str, str]) -> Arm:
    if name in _PEERS:
        return _PEERS[name]
    if name in endpoints:
        return Arm(name, System.OPENAI, url=endpoints[name])
    if name.startswith(_DISTRIBUTED):
        method = parse_method(name.removeprefix(_DISTRIBUTED))
        if method.base not in _ROUTED:
            raise UnsupportedCombination(
                f"arm {name!r} needs another draft than the services have;"
                f" {_DISTRIBUTED}METHOD takes {', '.join(sorted(_ROUTED))} and their modifiers"
            )
        return Arm(name, System.DISTRIBUTED, method)
    try:
        return Arm(name, System.EMBEDDED, parse_method(name))
    except InvalidRequest as error:
        known = ", ".join([*_PEERS, *endpoints, f"{_DISTRIBUTED}METHOD"])
        raise type(error)(f"{error}; or an arm: {known}") from None
