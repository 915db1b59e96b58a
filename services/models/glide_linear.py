"""Products of a draft: a row or two at a time from 8-bit weights, more rows from packed ones.

A draft step reads every weight for a row or two, so its time is the bytes it reads: 8-bit weights,
one scale per output, halve it on a CPU. A draft's scores only propose, so the rounding costs
acceptance (hardly any) and never correctness. Knows nothing of what it multiplies.
"""

import torch
from torch import Tensor

from slipstream.models.linear import PackedLinear, can_pack

_LARGEST = 127
_FEW = 2
"""Rows up to which 8-bit weights are faster: unpacking them is done over for every few rows."""


class DraftLinear:
    """`x @ weight.T + bias` for x [rows, in]; few bfloat16 rows on a CPU use 8-bit weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = PackedLinear(weight, bias)
        self._bias = bias
        self._levels: Tensor | None = None
        if weight.dtype == torch.bfloat16 and can_pack(weight):
            self._levels, self._scales = quantize(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        if self._levels is None or x.size(0) > _FEW:
            return self._packed(x)
        out = torch._weight_int8pack_mm(x, self._levels, self._scales)
        return out if self._bias is None else out + self._bias


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit levels [out, in] and one scale per output [out], of the weight's dtype."""
    scales = weight.float().abs().amax(dim=1).clamp_min(1e-12) / _LARGEST
    scales = scales.to(weight.dtype)
    levels = (weight.float() / scales.float()[:, None]).round().clamp(-_LARGEST, _LARGEST)
    return levels.to(torch.int8), scales
