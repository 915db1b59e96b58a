"""Rotary embeddings whose frequencies depend on the position alone: parameters and factors.

The frequencies are those of transformers up to the last place. Powers and angles are computed in
float64, so that rounding hides how a processor computes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.errors import WeightsError
from slipstream.models.dtypes import Array
from slipstream.models.format.families import TABLE, defaults, is_number, require_harmless
from slipstream.models.native.library import NotNative

_NEEDED, _NUMBERS, _OTHERS = (TABLE["ropes"][part] for part in ("needed", "optional", "other"))
"""Kinds of rotary embeddings that depend on the position alone, the numbers that they need or may
have, and their other parameters."""
_TORCH_ONLY = ("dynamic", "proportional")
ORIGINAL, _PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"
_ALL = ("rope_type", "type", "rope_theta", ORIGINAL, "finetuned")
_LONGEST = "max_position_embeddings"
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Rotary:
    """Inverse frequencies [rotary_dim / 2], float32, and the factor of cos and sin."""

    inv_freq: Array
    attention_scaling: float = 1.0


def rotary_tables(rotary: Rotary, length: int) -> tuple[Array, Array]:
    """Return cos and sin [length, rotary_dim / 2], float32, of positions below `length`."""
    positions = np.arange(length, dtype=np.float32)[:, None]
    angles = (positions * rotary.inv_freq).astype(np.float64)
    cos, sin = (part * rotary.attention_scaling for part in (np.cos(angles), np.sin(angles)))
    return cos.astype(np.float32), sin.astype(np.float32)


def rope_of(own: Mapping[str, Any], family: str) -> Mapping[str, Any]:
    """Return the rotary parameters of all layers, in the style of transformers 5, by the fields of
    a config.json in either style. Raises what `_checked` raises."""
    given = own["rope_scaling"] or own["rope_parameters"] or {}
    rope = {"rope_theta": own["rope_theta"], **given}
    if own[ORIGINAL] is not None:
        rope[ORIGINAL] = own[ORIGINAL]
    if _PARTIAL in own:
        rope.setdefault(_PARTIAL, own[_PARTIAL])
    return _checked(rope, own, family, has_part=_PARTIAL in own)


def nested_ropes(own: Mapping[str, Any], family: str) -> tuple[Mapping[str, Any], ...]:
    """Return the rotary parameters of layers that see all positions, and of those with a window.
    Raises what `_checked` raises."""
    given = own["rope_parameters"] or {}
    nested = {kind: given[kind] for kind in (_FULL, _SLIDING) if isinstance(given.get(kind), dict)}
    require_harmless({**given, "model_type": family}, {*nested, "model_type"}, "rope.")
    local = own.get("rope_local_base_freq", defaults(family)["rope_theta"])
    full = {"rope_theta": own["rope_theta"], **nested.get(_FULL, {}), **(own["rope_scaling"] or {})}
    sliding = {"rope_theta": local, **nested.get(_SLIDING, {})}
    return tuple(_checked(rope, own, family, has_part=False) for rope in (full, sliding))


def _checked(
    rope: dict[str, Any], own: Mapping[str, Any], family: str, *, has_part: bool
) -> Mapping[str, Any]:
    """Raises `NotNative` for rotary embeddings of another kind, `WeightsError` for a parameter that
    is of another type or not read."""
    kind, longest = str(rope.get("rope_type") or rope.get("type", "default")), own[_LONGEST]
    if has_part and kind in ("su", "yarn"):  # as older files of Phi-3 call it
        kind = "longrope"
    rope["rope_type"] = kind
    if kind not in (*_NEEDED, *_TORCH_ONLY):
        raise WeightsError(f"config.json has rope.rope_type of {kind!r:.60}, which is not known")
    if kind not in _NEEDED:
        raise NotNative(f"its rotary embedding is of the kind {kind}")
    rope.setdefault(ORIGINAL, longest)
    if kind == "longrope" and rope.get("factor") is None and is_number(rope[ORIGINAL]):
        rope["factor"] = longest / rope[ORIGINAL]
    numbers = ("rope_theta", ORIGINAL, *_NEEDED[kind], *([_PARTIAL] if has_part else []))
    optional = _NUMBERS.get(kind, ())
    known = {*_ALL, *numbers, *optional, *_OTHERS.get(kind, ()), "model_type"}
    require_harmless({**rope, "model_type": family}, known, "rope.")
    if missing := [name for name in numbers if name not in rope]:
        raise NotNative(f"its rotary embedding has no {missing[0]}")
    for name in (*numbers, *(name for name in optional if rope.get(name))):
        if not is_number(rope[name]):
            raise WeightsError(f"config.json has rope.{name} of {rope[name]!r:.60}, no number")
    return rope


def positions_of(rope: Mapping[str, Any], longest: int) -> int:
    """Return the positions that a rotary embedding serves, by the field `max_position_embeddings`.

    Those that are stretched serve as many as their factor makes of the original ones; of two sets
    of factors the one for long texts is not used.
    """
    kind, original = rope.get("rope_type"), rope.get(ORIGINAL) or longest
    if kind == "longrope":
        return min(longest, original)
    if kind == "yarn":
        return max(longest, int(original * rope["factor"]))
    return int(longest * rope["factor"]) if kind == "linear" else longest


def rotary(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Return the rotary embedding of heads; `parameters` as in the field `rope_parameters` of a
    config.json, with the original context length."""
    makers = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
    make = makers.get(parameters["rope_type"])
    dim = int(head_dim * parameters.get(_PARTIAL, 1.0))
    try:
        return Rotary(1.0 / _bases(parameters, dim)) if make is None else make(parameters, dim)
    except ArithmeticError as error:
        raise WeightsError(f"config.json has rotary parameters of no use ({error})") from None


def _bases(parameters: Mapping[str, Any], head_dim: int) -> Array:
    shares = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = float(parameters["rope_theta"]) ** shares.astype(np.float64)
    return powers.astype(np.float32)


def _linear(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    return Rotary(1.0 / _bases(parameters, head_dim) / parameters["factor"])


def _llama3(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Long waves are slowed down, short ones stay, those between are mixed."""
    factor, length = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    plain = 1.0 / _bases(parameters, head_dim)
    wavelength = 2 * math.pi / plain
    scaled = np.where(wavelength > length / low, plain / factor, plain)
    smooth = (length / wavelength - low) / (high - low)
    mixed = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = ~(wavelength < length / high) * ~(wavelength > length / low)
    return Rotary(np.where(is_medium, mixed, scaled))


def _yarn(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Frequencies between interpolation and extrapolation, by the number of rotations."""
    factor, bases = parameters["factor"], _bases(parameters, head_dim)
    first, last = _yarn_range(parameters, head_dim)
    places = np.arange(head_dim // 2, dtype=np.float32)
    kept = 1 - np.clip((places - first) / (last - first), 0, 1)
    frequencies = 1.0 / (factor * bases) * (1 - kept) + 1.0 / bases * kept
    return Rotary(frequencies, _yarn_scaling(parameters))


def _longrope(parameters: Mapping[str, Any], dim: int) -> Rotary:
    """Frequencies for texts within the original context, each with a factor of its own."""
    bases, factor = _bases(parameters, dim), parameters["factor"]
    given = parameters.get("short_factor")
    if not isinstance(given, list) or len(given) != len(bases) or not all(map(is_number, given)):
        raise WeightsError(f"config.json has a rope.short_factor that is not {len(bases)} numbers")
    scaling = parameters.get("attention_factor")
    if scaling is None:
        growth = math.log(factor) / math.log(parameters[ORIGINAL])
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + growth)
    return Rotary(1.0 / (np.asarray(given, np.float32) * bases), scaling)


def _yarn_range(parameters: Mapping[str, Any], head_dim: int) -> tuple[float, float]:
    length = parameters["original_max_position_embeddings"]

    def place(rotations: float) -> float:
        turns = math.log(length / (rotations * 2 * math.pi))
        return (head_dim * turns) / (2 * math.log(parameters["rope_theta"]))

    first = place(parameters.get("beta_fast") or 32)
    last = place(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    return first, last + 0.001 if first == last else last


def _yarn_scaling(parameters: Mapping[str, Any]) -> float:
    given: float | None = parameters.get("attention_factor")
    if given is not None:
        return given
    factor = parameters["factor"]

    def scale(weight: float = 1) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    all_dim, own = parameters.get("mscale_all_dim"), parameters.get("mscale")
    return float(scale(own) / scale(all_dim)) if own and all_dim else scale()
