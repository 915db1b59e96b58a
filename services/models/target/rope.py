"""Rotary embeddings whose frequencies depend on the position alone: parameters and factors.

The frequencies are those of transformers up to the last place. Powers and angles are computed in
float64, so that rounding hides how a processor computes them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.models.dtypes import Array

STATIC = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embeddings that depend on the position alone."""
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


@dataclass(frozen=True, slots=True)
class Rotary:
    """Inverse frequencies [head_dim / 2], float32, and the factor of cos and sin."""

    inv_freq: Array
    attention_scaling: float = 1.0


def rotary_tables(rotary: Rotary, length: int) -> tuple[Array, Array]:
    """Return cos and sin [length, head_dim / 2], float32, of positions below `length`."""
    positions = np.arange(length, dtype=np.float32)[:, None]
    angles = (positions * rotary.inv_freq).astype(np.float64)
    cos, sin = (part * rotary.attention_scaling for part in (np.cos(angles), np.sin(angles)))
    return cos.astype(np.float32), sin.astype(np.float32)


def lacking(parameters: Mapping[str, Any]) -> str | None:
    """Return the name of a parameter that a static kind needs and that is no number."""
    needed = ("rope_theta", *_NEEDED[parameters["rope_type"]])
    return next((name for name in needed if not is_number(parameters.get(name))), None)


def is_number(value: object) -> bool:
    """Return whether a value is a positive number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def rotary(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Return the rotary embedding of heads; `parameters` as in the field `rope_parameters` of a
    config.json, with the original context length."""
    makers = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
    make = makers.get(parameters["rope_type"])
    return (
        Rotary(1.0 / _bases(parameters, head_dim)) if make is None else make(parameters, head_dim)
    )


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
