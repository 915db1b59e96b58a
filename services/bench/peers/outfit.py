"""What each arm needs to run, and whether it is here: its seat's settings, or why it is skipped."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipstream.bench.peers.arms import Arm, Mode, System
from slipstream.bench.peers.ggufs import in_bfloat16, published
from slipstream.bench.peers.wire import Settings
from slipstream.core.errors import InvalidRequest, SlipstreamError
from slipstream.local.stack import StackPlan

LOOKUP_TOKENS = 10
LLAMA_LOOKUP_TOKENS = 2
"""What llama-cpp-python advises for machines without a GPU; its default is 10."""


class NotHere(SlipstreamError):
    """An arm can't run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Outfit:
    """What the arms share, and what single ones need."""

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
        for name in ("threads", "lookup_tokens", "llama_lookup_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be at least 1")


def seat_settings(arm: Arm, outfit: Outfit, *, is_concurrent: bool) -> Settings:
    """What the seat of an arm loads. Raises `NotHere` for an arm that has to be left out.

    Arms of ours whose settings differ in nothing but `methods` share a seat; others have their own.
    """
    shared: dict[str, Any] = {
        "system": arm.system.value,
        "target": outfit.target,
        "dtype": outfit.dtype,
        "threads": outfit.threads,
        "device": outfit.device,
    }
    if arm.system is System.TRANSFORMERS:
        return shared | _transformers(arm, outfit)
    if arm.system is System.LLAMA_CPP:
        return shared | _llama(arm, outfit)
    if arm.system is System.OPENAI:
        return shared | {"url": arm.url, "token": outfit.token}
    return shared | _ours(arm, outfit, is_concurrent=is_concurrent)


def _transformers(arm: Arm, outfit: Outfit) -> dict[str, Any]:
    if arm.mode is Mode.ASSISTANT and outfit.assistant is None:
        raise NotHere("there is no assistant model; --assistant names one")
    return {
        "mode": arm.mode.value,
        "assistant": outfit.assistant,
        "lookup_tokens": outfit.lookup_tokens,
    }


def _llama(arm: Arm, outfit: Outfit) -> dict[str, Any]:
    if find_spec("llama_cpp") is None:
        raise NotHere("llama-cpp-python is not installed: pip install 'slipstream[peers]'")
    if outfit.device != "cpu":
        raise NotHere(f"llama.cpp is run on the CPU here, but the device is {outfit.device}")
    return {
        "mode": arm.mode.value,
        "gguf": str(_gguf(outfit.target, outfit.gguf, is_full=arm.is_full)),
        "num_positions": outfit.num_positions,
        "llama_lookup_tokens": outfit.llama_lookup_tokens,
        "llama_repack": outfit.llama_repack,
    }


@lru_cache
def _gguf(target: str, gguf: Path | None, *, is_full: bool) -> Path:
    try:
        found = published(target, gguf)
        return in_bfloat16(found) if is_full else found
    except SlipstreamError as error:
        raise NotHere(str(error)) from None


def _ours(arm: Arm, outfit: Outfit, *, is_concurrent: bool) -> dict[str, Any]:
    assert arm.method is not None
    if arm.system is System.DISTRIBUTED:
        return {"stack": asdict(outfit.stack)}
    return {
        "draft": outfit.draft,
        "profile": None if outfit.profile is None else str(outfit.profile),
        "numerics": arm.method.numerics,
        "is_concurrent": is_concurrent,
    }
