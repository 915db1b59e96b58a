"""Products and norms that give a row the same bits in any company, on a device.

The last bit of a product's row depends on the kernel that a library picks for the number of rows,
and at times on the row's place among them. Within a range of counts the kernel, and with it the
order of additions, is the same: it is measured and not assumed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.models.cuda.layers import ScaledLinear
from slipstream.models.decoder import ANY_ROWS, RowRule
from slipstream.models.glide.glide import RmsNorm
from slipstream.models.torch.arrays import rounded
from slipstream.models.torch.ranks import linear_of

_PROBED = (*(1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 24, 31, 32, 33, 48, 64, 96), *range(128, 513, 64))
_FALLBACK = 16


def probed_rule(model: nn.Module) -> RowRule:
    """Return the row counts that products with every form of a model's weights allow.

    A bias may bring another kernel; one of zeros hides nothing of the order of additions.
    """
    rule, forms = ANY_ROWS, set[tuple[torch.Size, torch.dtype, bool]]()
    for linear in (own for own in model.modules() if isinstance(own, nn.Linear)):
        weight, bias = linear.weight.detach(), linear.bias
        form = (weight.shape, weight.dtype, bias is not None)
        if form not in forms:
            forms.add(form)
            is_scaled = isinstance(linear, ScaledLinear)
            example, few = cancelling(weight, torch.bfloat16 if is_scaled else weight.dtype)
            rows, num = rounded(few) if is_scaled else [few], -(-len(weight) // len(few))
            like = [own.repeat(num, 1)[: len(weight)] for own in rows]
            zeros = None if bias is None else bias.detach() * 0
            made = ScaledLinear(like, zeros) if is_scaled else linear_of(like[0], zeros)
            rule = rule.intersect(probe_rows(made, example))
    return rule


def make_steady(module: nn.Module, rule: RowRule) -> None:
    """Swap the linear layers and norms of a model, in place; products obey the rule."""
    children: list[tuple[str, Any]] = [*module.named_children()]
    for name, child in children:
        if isinstance(child, nn.Linear):
            setattr(module, name, SteadyLinear(child, rule))
        elif type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
            # Torch's fused kernel adds up each row alone.
            norm = RmsNorm(len(child.weight), child.variance_epsilon)
            norm.weight = child.weight
            setattr(module, name, norm)
        else:
            make_steady(child, rule)


class SteadyLinear(nn.Module):
    """A linear layer in pieces of rows that obey a rule."""

    def __init__(self, linear: nn.Linear, rule: RowRule) -> None:
        super().__init__()
        self._linear, self._rule = linear, rule

    def forward(self, x: Tensor, *scales: Tensor) -> Tensor:
        """x [..., in] -> [..., out]; x [R, in] where rows have `scales` [R, 1]."""
        rows = (x.reshape(-1, x.shape[-1]), *scales)
        return tiled(self._linear, rows, self._rule).view(*x.shape[:-1], -1)


def tiled(product: Callable[..., Tensor], rows: Sequence[Tensor], rule: RowRule) -> Tensor:
    """Return `product(*rows)` in pieces that obey the rule; rows [R, in], and what goes with
    them."""
    num_rows = len(rows[0])
    if num_rows > rule.max_rows:
        pieces = zip(*(own.split(rule.max_rows) for own in rows), strict=True)
        return torch.cat([tiled(product, piece, rule) for piece in pieces])
    missing = rule.min_rows - num_rows
    if missing > 0:
        more = (torch.cat([own, own[:1].expand(missing, -1)]) for own in rows)
        return product(*more)[:num_rows]
    return product(*rows)


def probe_rows(product: Callable[[Tensor], Tensor], example: Tensor) -> RowRule:
    """Return the widest range of row counts around 16 that agrees bit for bit.

    `product` maps [rows, in] to [rows, out]; `example` holds a multiple of 16 rows of inputs. Where
    even neighbouring counts disagree, every product is padded to exactly 16 rows; where a row's
    bits depend on its place among 16, rows are multiplied one by one.
    """
    parts = example.split(_FALLBACK)
    reference = torch.cat([product(part) for part in parts])
    turned = torch.cat([product(part.roll(1, 0)) for part in parts])
    rolled = torch.cat([part.roll(1, 0) for part in reference.split(_FALLBACK)])
    if not torch.equal(turned, rolled):
        return RowRule(1, 1)

    def agrees_at(rows: int) -> bool:
        starts = range(0, len(example) - rows + 1, max(rows, 32))
        pieces = [slice(start, start + rows) for start in starts]
        return all(torch.equal(product(example[piece]), reference[piece]) for piece in pieces)

    probed = [rows for rows in _PROBED if rows <= len(example)]
    agrees = [*map(agrees_at, probed)]
    low = high = probed.index(_FALLBACK)
    while low > 0 and agrees[low - 1]:
        low -= 1
    while high + 1 < len(probed) and agrees[high + 1]:
        high += 1
    return RowRule(_FALLBACK, _FALLBACK) if low > 1 else RowRule(probed[low], probed[high])


def cancelling(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs [n, in], and rows [n, in] of a weight of this one's form on its device, whose
    products are all 0 but for rounding.

    What is left is made of the order of additions alone. In products of other numbers, rounding
    to bfloat16 hides another order in all but one of some 10,000 elements.
    """
    noise = torch.Generator().manual_seed(0)
    num_rows, width = _PROBED[-1], weight.shape[1]
    half = width // 2
    order = torch.randperm(2 * half, generator=noise)
    inputs, outputs = torch.randn(2, num_rows, half, generator=noise)
    example, like = torch.zeros(2, num_rows, width)
    example[:, : 2 * half] = torch.cat([inputs, -inputs], 1)[:, order]
    like[:, : 2 * half] = torch.cat([outputs, outputs], 1)[:, order]
    return example.to(weight.device, dtype), like.to(weight.device, dtype)
