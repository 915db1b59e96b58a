"""Numbers of batched tokens that keep every token's bits, measured and not assumed.

The last bit of a product's row depends on the kernel that a library picks for the number of rows,
and at times on the row's place among them. Within a range of counts the kernel, and with it the
order of additions, is the same. Attention on a CPU multiplies many queries at once and depends on
their number likewise: where no count is safe, every query is computed on its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.core.errors import ModelError
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout
from slipstream.models.machine import this_machine
from slipstream.models.numerics.operators import apart, together
from slipstream.models.numerics.rules import RowRule
from slipstream.models.torch_arrays import torch_dtype

_PROBED = (1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 24, 31, 32, 33, 48, 64, 96, 128)
_FALLBACK = 16
PAIRED = 32
"""Keys among which every one is there twice, with values of either sign: so outputs are 0 but for
rounding, and nothing hides another order of additions. Rows see a whole number of such blocks."""
_TRIED = 16
"""Rows whose attention is what that of other numbers is compared with."""
MAX_ROWS = 64
"""The most tokens that attend together, so that few numbers of them are to be tried."""
Attention = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Outputs and log masses of queries [r, kv_heads, group, d] under a mask of the rule's shape."""
_CASES = ((MAX_ROWS, BLOCK_SIZE), (32, 5 * BLOCK_SIZE))
"""Rows and keys of what is tried: keys within one block of the kernel's, and beyond."""


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


def cancelling_keys(half: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [heads, slots, d], in blocks of `PAIRED`, whose attention cancels.

    `half` [2, heads, blocks, PAIRED / 2, d] are the keys and values there twice, `order` [PAIRED]
    is their order within a block.
    """
    keys, values = (
        torch.cat([part, sign * part], 2)[:, :, order].flatten(1, 2)
        for part, sign in zip(half, (1, -1), strict=True)
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


@dataclass(frozen=True)
class QueryRule:
    """Numbers of tokens, `steady`, that give a token the same bits when they attend together.

    They ascend. With `is_apart` every token is computed on its own, so that any number is steady.
    """

    steady: Sequence[int]
    is_apart: bool = False

    @property
    def max_rows(self) -> int:
        """The most tokens that may attend together."""
        return self.steady[-1]

    def shaped(self, mask: Tensor, group: int) -> Tensor:
        """Return a mask [n, width] for `group` query heads a token, padded as in `QuerySegment`."""
        if self.is_apart:
            return mask[:, None, None].expand(-1, 1, group, -1)
        padding = self.steady[bisect_left(self.steady, len(mask))] - len(mask)
        if padding:
            mask = torch.cat([mask, mask[:1].expand(padding, -1)])
        return mask.repeat_interleave(group, 0)[None, None]


ANY_QUERIES = QueryRule(range(1, 1 << 20))
"""Rule of queries whose bits may differ."""
TOGETHER = QueryRule(range(1, MAX_ROWS + 1))
APART = QueryRule(range(1, MAX_ROWS + 1), is_apart=True)


@dataclass(frozen=True, slots=True)
class Example:
    """Queries [rows, kv_heads, group, d] and what each row sees: an additive mask [rows, width]."""

    queries: Tensor
    mask: Tensor


def probe(attention: Attention, example: Example, candidate: QueryRule) -> QueryRule | None:
    """Return the row counts of `candidate`, which pads none, that keep every row's bits.

    None where a row's bits depend on its place among others, or no count agrees with 16 rows.
    """
    num_rows, group = len(example.queries), example.queries.shape[2]

    def run(rows: Tensor) -> Tensor:
        mask = candidate.shaped(example.mask[rows], group)
        out, mass = attention(example.queries[rows], mask)
        return torch.cat([out.float(), mass.float().unsqueeze(-1)], -1)

    every = torch.arange(num_rows)
    reference = torch.cat([run(part) for part in every.split(_TRIED)])
    turned = every[:_TRIED].roll(1)
    if not torch.equal(run(turned), reference[turned]):
        return None
    counts = [rows for rows in candidate.steady if rows <= num_rows]
    steady = tuple(rows for rows in counts if _keeps_bits(run, every, reference, rows))
    return QueryRule(steady, candidate.is_apart) if steady else None


def _keeps_bits(
    run: Callable[[Tensor], Tensor], every: Tensor, reference: Tensor, rows: int
) -> bool:
    """Return whether so many rows at a time, all of them, have the bits of the reference.

    Few rows differ: of rows on their own, one in some hundred.
    """
    whole = len(every) // rows * rows
    parts = [run(part) for part in every[:whole].split(rows)]
    return torch.equal(torch.cat(parts), reference[:whole])


def query_rule(layout: KvLayout, group: int, *, is_invariant: bool) -> QueryRule:
    """Return how many tokens of a model may attend together.

    `group` is the number of query heads per key head. Raises `ModelError` where invariant numerics
    are asked for and not even tokens on their own keep their bits.
    """
    if not is_invariant or layout.device != "cpu":
        return ANY_QUERIES
    shape = _Shape(torch_dtype(layout.dtype), layout.num_kv_heads, group, layout.head_dim)
    name = "steady query rows " + " ".join(map(str, shape))
    rule = _read(this_machine().recall(name, lambda: _told(_found(shape)), is_valid=_is_rule))
    if rule is None:
        raise ModelError(
            f"attention in {layout.dtype} on this CPU gives a row other bits in another batch:"
            " use fast numerics"
        )
    return rule


class _Shape(NamedTuple):
    dtype: torch.dtype
    num_kv_heads: int
    group: int
    dim: int


def _told(rule: QueryRule | None) -> dict[str, Any] | None:
    return None if rule is None else {"steady": list(rule.steady), "is_apart": rule.is_apart}


def _read(value: Any) -> QueryRule | None:
    return None if value is None else QueryRule(value["steady"], value["is_apart"])


def _is_rule(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or set(value) != {"steady", "is_apart"}:
        return False
    steady = value["steady"]
    numbers = isinstance(steady, list) and all(type(size) is int and size > 0 for size in steady)
    return bool(numbers and steady and steady == sorted(set(steady)))


def _found(shape: _Shape) -> QueryRule | None:
    for candidate in (TOGETHER, APART):
        rule: QueryRule | None = candidate
        for rows, width in _CASES:
            rule = _both(rule, _tried(candidate, rows, width, shape), rows)
        if rule is not None:
            return rule
    return None


def _both(rule: QueryRule | None, found: QueryRule | None, num_rows: int) -> QueryRule | None:
    """Return the counts that hold in both; `found` covers no more than `num_rows` rows."""
    if rule is None or found is None:
        return None
    steady = tuple(size for size in rule.steady if size in found.steady or size > num_rows)
    return QueryRule(steady, rule.is_apart) if steady else None


def _tried(candidate: QueryRule, rows: int, width: int, shape: _Shape) -> QueryRule | None:
    dtype, heads, group, dim = shape
    noise = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=noise).to(dtype)

    seen = PAIRED * torch.randint(1, width // PAIRED + 1, (rows, 1), generator=noise)
    mask = torch.zeros(rows, width).masked_fill_(torch.arange(width) >= seen, -torch.inf).to(dtype)
    half = random(2, heads, width // PAIRED, PAIRED // 2, dim)
    order = torch.randperm(PAIRED, generator=noise)
    keys, values = (key.unsqueeze(0) for key in cancelling_keys(half, order))
    look_at = apart if candidate.is_apart else together

    def attention(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return look_at(query, keys, values, mask, dim**-0.5)

    return probe(attention, Example(random(rows, heads, group, dim), mask), candidate)
