"""A profile as a file, read strictly: its two models, the profile, and notes on its making."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.policy.profile import Profile
from slipstream.files import parse_json, read_text
from slipstream.options import overlaid

FORMAT_VERSION = 1
PROFILE_NAME = "profile.json"
"""Beside GliDe weights, the file of this name holds their default profile."""

_NEEDED = ("format_version", "models", "profile")
_NOTED = ("command", "revision", "machine", "measured")
"""Facts for readers of the file; loading it ignores them."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """The two models that a profile is for.

    `target` is empty for a draft of any target; `weights_sha256` are the draft's own, by file, and
    empty for drafts that are models by name.
    """

    target: str
    draft: str
    tokenizer_hash: str | None = None
    weights_sha256: Mapping[str, str] = field(default_factory=dict)


def profile_file(profile: Profile, pair: ModelPair, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's values; `notes` are the command, revision, machine and measurements."""
    models = {
        "target": pair.target,
        "draft": pair.draft,
        "tokenizer_hash": pair.tokenizer_hash,
        "weights_sha256": dict(pair.weights_sha256),
    }
    return {"format_version": FORMAT_VERSION, **notes, "models": models, "profile": asdict(profile)}


def read_profile(path: Path, pair: ModelPair) -> Profile:
    """Return the profile in a file.

    Raises `InvalidRequest` for what is no such file, and `ModelMismatch` for one of other models.
    """
    values = _parsed(path)
    for name in values:
        if name not in (*_NEEDED, *_NOTED):
            known = ", ".join((*_NEEDED, *_NOTED))
            raise InvalidRequest(f"{path} has {name!r}, but known are {known}")
    for name in _NEEDED:
        if name not in values:
            raise InvalidRequest(f"{path} is no profile: it has no {name}")
    if values["format_version"] != FORMAT_VERSION:
        raise InvalidRequest(
            f"{path} has format_version {values['format_version']!r}, but known is {FORMAT_VERSION}"
        )
    _check_models(values["models"], pair, path)
    return overlaid(Profile(), values["profile"], f"the profile in {path}")


def _parsed(path: Path) -> dict[str, Any]:
    values = parse_json(read_text(path), f"the profile {path}")
    if not isinstance(values, dict):
        raise InvalidRequest(f"the profile {path} is not a JSON object")
    return values


def _check_models(models: Any, pair: ModelPair, path: Path) -> None:
    if not isinstance(models, dict):
        raise InvalidRequest(f"models of {path} is no object of fields")
    wanted: dict[str, Any] = {
        "target": pair.target or None,  # a plain draft goes with any target
        "draft": pair.draft,
        "tokenizer_hash": pair.tokenizer_hash,
        "weights_sha256": dict(pair.weights_sha256),
    }
    for name, ours in wanted.items():
        if ours is not None and models.get(name) != ours:
            raise ModelMismatch(
                f"the profile {path} is for {name.replace('_', ' ')} {_short(models.get(name))},"
                f" but here it is {_short(ours)}; run `slipstream calibrate` for these models"
            )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {str(value[name])[:12]}" for name in sorted(value)) or "none"
    return repr(value if value is None else str(value)[:40])
