"""Rotary embedding in torch: factors of tokens, and the rotation of their heads."""

from dataclasses import dataclass

import torch
from torch import Tensor


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

    def at(self, chosen: Tensor | None) -> "RotaryFactors":
        """Return the factors of some tokens; None is all."""
        return self if chosen is None else RotaryFactors(self.cos[chosen], self.sin[chosen])

    def rotate(self, x: Tensor) -> Tensor:
        """Return x [R, heads, head_dim] rotated; dimensions beyond rotary_dim pass unchanged."""
        width = self.cos.shape[-1]
        part = x if width == x.shape[-1] else x[..., :width]
        turned = torch.addcmul(part * self.cos, part.roll(width // 2, -1), self.sin)
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)
