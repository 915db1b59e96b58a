"""Settings from the environment, read here only. Knows nothing of models or commands."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import InvalidRequest

CACHE_VARIABLE = "SLIPSTREAM_CACHE"
OFFLINE_VARIABLE = "SLIPSTREAM_OFFLINE"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment decides; everything else is an argument."""

    cache_dir: Path
    """Where converted models are kept; `SLIPSTREAM_CACHE`, else the user's cache directory."""
    offline: bool = False
    """Never ask the network for a model; `SLIPSTREAM_OFFLINE=1`."""


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `env`, by default the process's environment.

    Raises `InvalidRequest` for a value that can't be understood.
    """
    env = os.environ if env is None else env
    return Settings(cache_dir=_cache_dir(env), offline=_flag(env, OFFLINE_VARIABLE))


def _cache_dir(env: Mapping[str, str]) -> Path:
    if chosen := env.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".cache"
    return Path(base) / "slipstream" / "models"


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in {"", "0", "false", "no"}:
        return False
    if value in {"1", "true", "yes"}:
        return True
    raise InvalidRequest(f"{name} is {value!r}, but must be 0 or 1")
