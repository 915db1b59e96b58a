"""Settings of each configuration's engine, or the reason why it can't run here."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.bench.harness import require_at_least
from slipstream.bench.peers.engine import Settings
from slipstream.bench.peers.plan import Configuration, Mode, System
from slipstream.bench.peers.target import in_bfloat16, published
from slipstream.core.errors import SlipstreamError
from slipstream.local.stack import StackPlan

LOOKUP_TOKENS = 10
LLAMA_LOOKUP_TOKENS = 2
"""Number that llama-cpp-python advises for machines without a GPU; its default is 10."""


class NotAvailable(SlipstreamError):
    """Configuration that can't run here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Options of all engines, and of single ones."""

    target: str
    draft: str
    dtype: str
    threads: int
    device: str
    num_positions: int
    """Tokens that the longest request may hold."""
    stack: StackPlan
    profile: Path | None = None
    assistant: str | None = None
    gguf: Path | None = None
    token: str | None = None
    lookup_tokens: int = LOOKUP_TOKENS
    llama_lookup_tokens: int = LLAMA_LOOKUP_TOKENS
    llama_repack: bool = True

    def __post_init__(self) -> None:
        require_at_least(self, threads=1, lookup_tokens=1, llama_lookup_tokens=1)


def engine_settings(
    config: Configuration, options: PeerOptions, *, is_concurrent: bool
) -> Settings:
    """Return what the engine of a configuration loads. Raises `NotAvailable` where it can't run.

    Configurations of ours with equal settings share an engine; others have their own.
    """
    shared: dict[str, Any] = {
        "system": config.system.value,
        "target": options.target,
        "dtype": options.dtype,
        "threads": options.threads,
        "device": options.device,
    }
    if config.system is System.TRANSFORMERS:
        return shared | _transformers(config, options)
    if config.system is System.LLAMA_CPP:
        return shared | _llama(config, options)
    if config.system is System.OPENAI:
        return shared | {"url": config.url, "token": options.token}
    return shared | _ours(config, options, is_concurrent=is_concurrent)


def _transformers(config: Configuration, options: PeerOptions) -> dict[str, Any]:
    if config.mode is Mode.ASSISTANT and options.assistant is None:
        raise NotAvailable("there is no assistant model; --assistant names one")
    return {
        "mode": config.mode.value,
        "assistant": options.assistant,
        "lookup_tokens": options.lookup_tokens,
    }


def _llama(config: Configuration, options: PeerOptions) -> dict[str, Any]:
    if find_spec("llama_cpp") is None:
        raise NotAvailable("llama-cpp-python is not installed: pip install 'slipstream[peers]'")
    if options.device != "cpu":
        raise NotAvailable(f"llama.cpp is run on the CPU here, but the device is {options.device}")
    return {
        "mode": config.mode.value,
        "gguf": str(_gguf(options.target, options.gguf, is_full=config.is_full)),
        "num_positions": options.num_positions,
        "llama_lookup_tokens": options.llama_lookup_tokens,
        "llama_repack": options.llama_repack,
    }


@lru_cache
def _gguf(target: str, gguf: Path | None, *, is_full: bool) -> Path:
    try:
        found = published(target, gguf)
        return in_bfloat16(found) if is_full else found
    except SlipstreamError as error:
        raise NotAvailable(str(error)) from None


def _ours(config: Configuration, options: PeerOptions, *, is_concurrent: bool) -> dict[str, Any]:
    assert config.method is not None
    if config.system is System.DISTRIBUTED:
        return {"stack": asdict(options.stack)}
    return {
        "system": "embedded-batched" if is_concurrent else config.system.value,
        "draft": options.draft,
        "profile": None if options.profile is None else str(options.profile),
        "numerics": config.method.numerics,
    }
