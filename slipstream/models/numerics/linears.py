"""Linear layers: weights packed once, under one rule about row counts; a draft's in 8 bits."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.core.errors import ModelError
from slipstream.models.machine import best_seconds, this_machine
from slipstream.models.numerics.invariance import cancelling, probe_rows, tiled
from slipstream.models.numerics.operators import (
    has_int8_linear,
    has_packed_linear,
    int8_linear,
    pack_weight,
    packed_linear,
)
from slipstream.models.numerics.rules import ANY_ROWS, SMALL, RowRule

Join = Callable[[Tensor], Tensor]
"""Makes a layer's output of the products of all ranks."""
_LARGEST = 127
_FEW = 2
"""Rows up to which 8-bit weights may be faster: they are unpacked anew for every few rows."""
_WHOLE = 16
"""Inputs that torch's product takes at a time; it reads past the end of any that are left over."""
_SHAPE = (1024, 1024)
_COPIES = 8
"""Weights timed in turn, so that they come from memory as those of a draft do."""


class PackedLinear:
    """`x @ weight.T + bias` for x [rows, in], about twice as fast as `F.linear` on most CPUs.

    `F.linear` lays a weight out anew in every call; oneDNN's packed product does that once. Where
    there is none for the weight's dtype and device, `F.linear` multiplies.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.is_packed = weight.device.type == "cpu" and has_packed_linear(weight.dtype)
        self.weight = pack_weight(weight) if self.is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_packed:
            return packed_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def stacked_bias(linears: Sequence[Any]) -> Tensor | None:
    """Return the biases of linear layers one after the other, zeros where some have none; None
    where no layer has one."""
    if all(linear.bias is None for linear in linears):
        return None
    parts = [
        linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return torch.cat(parts)


class Linears:
    """Packs weights and, for invariant numerics, finds the row counts that all products share.

    The rule narrows while products are made and holds for every one of them afterwards.
    """

    def __init__(self, *, is_invariant: bool) -> None:
        self.rule = ANY_ROWS
        self._is_invariant = is_invariant
        self._seen: set[tuple[torch.Size, bool]] = set()

    def make(self, linears: Sequence[Any]) -> Callable[[Tensor], Tensor]:
        """One product for linear layers stacked along their outputs; [rows, in] to [rows, out].

        Of a layer that is split among ranks, each multiplies its part, and all have the output.
        """
        own, join = self._own(linears), _join_of(linears)
        return own if join is None else lambda x: join(own(x))

    def _own(self, linears: Sequence[Any]) -> Callable[[Tensor], Tensor]:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        bias = stacked_bias(linears)
        packed = PackedLinear(weight, bias)
        if not self._is_invariant:
            return packed
        form = (weight.shape, bias is not None)
        if form not in self._seen:
            self._seen.add(form)
            self.rule = self.rule.intersect(_rule(weight, bias))
        return lambda x: tiled(packed, x, self.rule)


def _join_of(linears: Sequence[Any]) -> Join | None:
    """Return what makes whole outputs of the parts' products; None where nothing is to be done."""
    joins = [getattr(linear, "join", None) for linear in linears]
    if len(joins) > 1 and any(joins):
        raise ModelError("layers that read the same input are split differently, so none can stack")
    return joins[0]


def _rule(weight: Tensor, bias: Tensor | None) -> RowRule:
    """Return what was found of products of this form on this machine, or is now.

    A bias may bring another kernel. One of zeros hides nothing of the order of additions.
    """

    def measure() -> list[int]:
        example, like = cancelling(weight)
        found = probe_rows(PackedLinear(like, None if bias is None else bias * 0), example)
        return [found.min_rows, found.max_rows]

    if weight.device.type != "cpu":
        return RowRule(*measure())
    added = "" if bias is None else " with bias"
    name = f"steady rows {weight.shape[0]}x{weight.shape[1]} {weight.dtype}{added}"
    return RowRule(*this_machine().recall(name, measure, is_valid=_is_rule))


def _is_rule(value: Any) -> bool:
    numbers = (
        isinstance(value, list) and len(value) == 2 and all(type(size) is int for size in value)
    )
    return numbers and 1 <= value[0] <= value[1]


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
