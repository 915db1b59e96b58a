"""Rotary embeddings whose frequencies depend on the position alone: parameters and factors.

The frequencies are those of transformers, bit for bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    inv_freq: Tensor
    attention_scaling: float = 1.0

    def __call__(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [..., T, head_dim] of positions [..., T], in the dtype of `like`."""
        angles = positions[..., None].float() * self.inv_freq.to(like.device)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = (part * self.attention_scaling for part in (both.cos(), both.sin()))
        return cos.to(like.dtype), sin.to(like.dtype)


@dataclass(frozen=True, slots=True)
class RotaryFactors:
    """cos of R tokens [R, 1, rotary_dim], and sin with its first half negated, so that rotating is
    two products and a roll."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor) -> "RotaryFactors":
        """Return the factors of tokens, by cos and sin [R, rotary_dim]."""
        half = sin.shape[-1] // 2
        signed = torch.cat((sin[:, :half].neg(), sin[:, half:]), -1)
        return cls(cos.unsqueeze(1), signed.unsqueeze(1))

    def at(self, chosen: slice | Tensor | None) -> "RotaryFactors":
        """Return the factors of some tokens; None is all."""
        return self if chosen is None else RotaryFactors(self.cos[chosen], self.sin[chosen])

    def rotate_(self, x: Tensor) -> None:
        """Rotate x [R, heads, rotary_dim] in place."""
        torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin, out=x)

    def rotate(self, x: Tensor) -> Tensor:
        """Return x [R, heads, head_dim] rotated; dimensions beyond rotary_dim pass unchanged."""
        width = self.cos.shape[-1]
        part = x if width == x.shape[-1] else x[..., :width]
        turned = torch.addcmul(part * self.cos, part.roll(width // 2, -1), self.sin)
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


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


def _bases(parameters: Mapping[str, Any], head_dim: int) -> Tensor:
    bases: Tensor = parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return bases


def _linear(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    return Rotary(1.0 / _bases(parameters, head_dim) / parameters["factor"])


def _llama3(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Long waves are slowed down, short ones stay, those between are mixed."""
    factor, length = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    plain = 1.0 / _bases(parameters, head_dim)
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > length / low, plain / factor, plain)
    smooth = (length / wavelength - low) / (high - low)
    mixed = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = ~(wavelength < length / high) * ~(wavelength > length / low)
    return Rotary(torch.where(is_medium, mixed, scaled))


def _yarn(parameters: Mapping[str, Any], head_dim: int) -> Rotary:
    """Frequencies between interpolation and extrapolation, by the number of rotations."""
    factor, bases = parameters["factor"], _bases(parameters, head_dim)
    first, last = _yarn_range(parameters, head_dim)
    places = torch.arange(head_dim // 2, dtype=torch.float32)
    kept = 1 - torch.clamp((places - first) / (last - first), 0, 1)
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
