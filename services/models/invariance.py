"""Which row counts give a row the same bits, in a matrix product. Measured, not assumed.

The last bit of a row depends on the kernel that a library picks for the number of rows, and at
times on the row's place among them. Within a range of row counts the kernel, and with it the order
of additions, is the same; what stays in that range is batch-invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Numerics = Literal["invariant", "fast"]
"""Whether a row's bits may depend on the other rows of a forward."""

_PROBED = (1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 24, 31, 32, 33, 48, 64, 96, 128)
_FALLBACK = 16


@dataclass(frozen=True, slots=True)
class RowRule:
    """Products of `min_rows` to `max_rows` rows give a row the same bits."""

    min_rows: int
    max_rows: int

    def meet(self, other: "RowRule") -> "RowRule":
        """The row counts that both rules allow."""
        return RowRule(max(self.min_rows, other.min_rows), min(self.max_rows, other.max_rows))


ANY_ROWS = RowRule(1, 1 << 30)


def probe_rows(product: Callable[[Tensor], Tensor], example: Tensor) -> RowRule:
    """Return the widest range of row counts around 16 that agrees bit for bit.

    `product` maps [rows, in] to [rows, out]; `example` holds at least 128 rows of inputs. Where
    even neighbouring counts disagree, every product is padded to exactly 16 rows; where a row's
    bits depend on its place among 16, rows are multiplied one by one.
    """
    reference = torch.cat([product(part) for part in example[:128].split(_FALLBACK)])
    turned = torch.cat([product(part.roll(1, 0)) for part in example[:128].split(_FALLBACK)])
    if not torch.equal(turned, _rolled(reference)):
        return RowRule(1, 1)
    agrees = {rows: _agrees(product, example, reference, rows) for rows in _PROBED}
    around = _PROBED.index(_FALLBACK)
    low = high = around
    while low > 0 and agrees[_PROBED[low - 1]]:
        low -= 1
    while high + 1 < len(_PROBED) and agrees[_PROBED[high + 1]]:
        high += 1
    if low > 1:
        return RowRule(_FALLBACK, _FALLBACK)
    return RowRule(_PROBED[low], _PROBED[high])


def cancelling(weight: Tensor, num_rows: int = 128) -> tuple[Tensor, Tensor]:
    """Return inputs [num_rows, in], and a weight of this one's form, whose products are all 0 but
    for rounding.

    What is left is made of the order of additions alone. In products of other numbers, rounding
    to bfloat16 hides another order in all but one of some 10,000 elements.
    """
    noise = torch.Generator().manual_seed(0)
    num_outputs, width = weight.shape
    half = width // 2
    order = torch.randperm(2 * half, generator=noise)
    inputs, outputs = (torch.randn(size, half, generator=noise) for size in (num_rows, num_outputs))
    example, like = torch.zeros(num_rows, width), torch.zeros(num_outputs, width)
    example[:, : 2 * half] = torch.cat([inputs, -inputs], 1)[:, order]
    like[:, : 2 * half] = torch.cat([outputs, outputs], 1)[:, order]
    return example.to(weight), like.to(weight)


PAIRED = 32
"""Keys among which every one is there twice, with values of either sign: so outputs are 0 but for
rounding, and nothing hides another order of additions. Rows see a whole number of such blocks."""


def cancelling_keys(half: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [heads, slots, d], in blocks of `PAIRED`, whose attention cancels.

    `half` [2, heads, blocks, PAIRED / 2, d] are the keys and values there twice, `order` [PAIRED]
    is their order within a block.
    """
    keys, values = (
        torch.cat([at, sign * at], 2)[:, :, order].flatten(1, 2)
        for at, sign in zip(half, (1, -1), strict=True)
    )
    return keys, values


def _rolled(reference: Tensor) -> Tensor:
    """Rows in each block of 16 one place further, the last one first."""
    return torch.cat([part.roll(1, 0) for part in reference.split(_FALLBACK)])


def _agrees(
    product: Callable[[Tensor], Tensor], example: Tensor, reference: Tensor, rows: int
) -> bool:
    for start in range(0, 128 - rows + 1, max(rows, 32)):
        out = product(example[start : start + rows])
        if not torch.equal(out, reference[start : start + rows]):
            return False
    return True


def tiled(product: Callable[[Tensor], Tensor], x: Tensor, rule: RowRule) -> Tensor:
    """`product(x)` in pieces that obey the rule; x [rows, in]."""
    num_rows = x.shape[0]
    if num_rows > rule.max_rows:
        return torch.cat([tiled(product, part, rule) for part in x.split(rule.max_rows)])
    missing = rule.min_rows - num_rows
    if missing > 0:
        return product(torch.cat([x, x[:1].expand(missing, -1)]))[:num_rows]
    return product(x)
