"""How many rows of a forward may look back together without a change of any row's bits.

Attention on a CPU multiplies the queries of many rows at once, by libraries whose last bits depend
on how many there are, and with some of them on a row's place. So row counts are probed at load with
the model's own shapes; where no count is safe, every row is computed on its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TRIED = 16
"""Rows whose attention is what that of other numbers is compared with."""
MAX_ROWS = 64
"""The most rows that look back together, so that few numbers of them are to be tried."""

Attention = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Outputs and log masses of queries [r, kv_heads, group, d] under a mask of the rule's shape."""


@dataclass(frozen=True)
class QueryRule:
    """Numbers of rows, `steady`, that give a row the same bits when they look back together.

    They ascend. With `is_apart` every row is computed on its own, so that any number is steady.
    """

    steady: Sequence[int]
    is_apart: bool = False

    @property
    def max_rows(self) -> int:
        """The most rows that may look back together."""
        return self.steady[-1]

    def shaped(self, mask: Tensor, group: int) -> Tensor:
        """Return a mask [rows, width] for `group` query heads a row, padded as `Look` has it."""
        if self.is_apart:
            return mask[:, None, None].expand(-1, 1, group, -1)
        padding = self.steady[bisect_left(self.steady, len(mask))] - len(mask)
        if padding:
            mask = torch.cat([mask, mask[:1].expand(padding, -1)])
        return mask.repeat_interleave(group, 0)[None, None]


ANY_QUERIES = QueryRule(range(1, 1 << 20))
"""Where bits may differ."""
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
    steady = tuple(rows for rows in counts if _agrees(run, every, reference, rows))
    return QueryRule(steady, candidate.is_apart) if steady else None


def _agrees(run: Callable[[Tensor], Tensor], every: Tensor, reference: Tensor, rows: int) -> bool:
    """Return whether so many rows at a time, all of them, have the bits of the reference.

    Few rows differ: of rows on their own, one in some hundred.
    """
    whole = len(every) // rows * rows
    parts = [run(part) for part in every[:whole].split(rows)]
    return torch.equal(torch.cat(parts), reference[:whole])
