"""Products of a draft: a row or two at a time from 8-bit weights, more rows from packed ones.

A draft step reads every weight for a row or two, so its time is the bytes it reads: 8-bit weights,
one scale per output, are a half or a quarter of them. A draft's scores only propose, so the
rounding costs acceptance (hardly any) and never correctness.
"""

import torch
from torch import Tensor

from slipstream.models.linear import PackedLinear
from slipstream.models.machine import this_machine
from slipstream.models.operators import has_int8_linear, int8_linear
from slipstream.models.speed import best_seconds

_LARGEST = 127
_FEW = 2
"""Rows up to which 8-bit weights may be faster: they are unpacked anew for every few rows."""
SMALL = 1 << 16
"""Elements of a weight up to which 8 bits gain nothing: converting the row costs as much."""
_WHOLE = 16
"""Inputs that torch's product takes at a time; it reads past the end of any that are left over."""
_SHAPE = (1024, 1024)
_COPIES = 8
"""Weights timed in turn, so that they come from memory as those of a draft do."""


class DraftLinear:
    """`x @ weight.T + bias` for x [rows, in]; few rows use 8-bit weights where that is faster."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = PackedLinear(weight, bias)
        self._bias = bias
        self._levels: Tensor | None = None
        is_large = weight.device.type == "cpu" and weight.numel() > SMALL
        if is_large and weight.shape[1] % _WHOLE == 0 and is_int8_faster(weight.dtype):
            self._levels, self._scales = quantize(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        if self._levels is None or x.size(0) > _FEW:
            return self._packed(x)
        out = _int8(x, self._levels, self._scales)
        return out if self._bias is None else out + self._bias


def is_int8_faster(dtype: torch.dtype) -> bool:
    """Return whether one row of this dtype is multiplied faster by 8-bit weights on this CPU."""
    name = f"int8 is faster than {dtype}"
    answer: bool = this_machine().recall(
        name, lambda: _is_faster(dtype), is_valid=lambda value: isinstance(value, bool)
    )
    return answer


def _is_faster(dtype: torch.dtype) -> bool:
    if not has_int8_linear():
        return False
    weight, x = torch.full(_SHAPE, 0.01, dtype=dtype), torch.full((1, _SHAPE[1]), 0.01, dtype=dtype)
    packed = [PackedLinear(weight.clone()) for _ in range(_COPIES)]
    levels, scales = quantize(weight)
    copies = [levels.clone() for _ in range(_COPIES)]
    as_is, int8 = best_seconds(
        [
            lambda: [product(x) for product in packed],
            lambda: [_int8(x, copy, scales) for copy in copies],
        ]
    )
    return int8 < as_is


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit levels [out, in] and one scale per output [out], bfloat16, of a weight [out, in]."""
    scales = weight.float().abs().amax(dim=1).clamp_min(1e-12) / _LARGEST
    scales = scales.to(torch.bfloat16)
    levels = (weight.float() / scales.float()[:, None]).round().clamp(-_LARGEST, _LARGEST)
    return levels.to(torch.int8), scales


def _int8(x: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    return int8_linear(x.to(torch.bfloat16), levels, scales).to(x.dtype)
