"""Makes the matrix products of a model, all under one rule about row counts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from slipstream.models.invariance import ANY_ROWS, RowRule, cancelling, probe_rows, tiled
from slipstream.models.linear import PackedLinear, stacked_bias
from slipstream.models.machine import this_machine
from slipstream.models.shards import join_of


class Products:
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
        own, join = self._own(linears), join_of(linears)
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
            self.rule = self.rule.meet(_rule(weight, bias))
        return lambda x: tiled(packed, x, self.rule)


def _rule(weight: Tensor, bias: Tensor | None) -> RowRule:
    """What was found of products of this form on this machine, or is now.

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
    numbers = isinstance(value, list) and len(value) == 2 and all(type(at) is int for at in value)
    return numbers and 1 <= value[0] <= value[1]
