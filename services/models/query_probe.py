"""The rule about rows that look back together, found for one model's shapes on this CPU."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipstream.core.errors import ModelError
from slipstream.models.attention import apart, together
from slipstream.models.invariance import PAIRED, cancelling_keys
from slipstream.models.kv_layout import KEY_BLOCK, KvLayout
from slipstream.models.machine import this_machine
from slipstream.models.queries import (
    ANY_QUERIES,
    APART,
    MAX_ROWS,
    TOGETHER,
    Example,
    QueryRule,
    probe,
)

_CASES = ((MAX_ROWS, KEY_BLOCK), (32, 5 * KEY_BLOCK))
"""Rows and keys of what is tried: keys within one block of the kernel's, and beyond."""


def query_rule(layout: KvLayout, group: int, *, is_invariant: bool) -> QueryRule:
    """Return how many rows of a model may look back together.

    `group` is the number of query heads per key head. Raises `ModelError` where invariant numerics
    are asked for and not even rows on their own keep their bits.
    """
    if not is_invariant or layout.device.type != "cpu":
        return ANY_QUERIES
    shape = _Shape(layout.dtype, layout.num_kv_heads, group, layout.head_dim)
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
    numbers = isinstance(steady, list) and all(type(at) is int and at > 0 for at in steady)
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
    """Counts that hold in both; `found` says nothing of more than `num_rows` rows."""
    if rule is None or found is None:
        return None
    steady = tuple(at for at in rule.steady if at in found.steady or at > num_rows)
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
    keys, values = (at.unsqueeze(0) for at in cancelling_keys(half, order))
    look_at = apart if candidate.is_apart else together

    def attention(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return look_at(query, keys, values, mask, dim**-0.5)

    return probe(attention, Example(random(rows, heads, group, dim), mask), candidate)
