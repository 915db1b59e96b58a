"""Tensor parallelism: steps that rank 0 sends, and the worker of another rank that computes them.

Only rank 0 has sessions. Before it computes, it sends which pages hold which positions, and which
tokens come. The others hold the keys and values of their own heads in the same pages, so that the
same code makes the same forward there. How steps travel is the caller's business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

from slipstream.core.tree import TokenTree
from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.pool import KvPool
from slipstream.models.ranks import Ranks
from slipstream.models.rows import Part

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Open:
    """Make pool number `pool`."""

    pool: int
    num_pages: int
    scratch_rows: int


@dataclass(frozen=True, slots=True)
class Close:
    """Free a pool."""

    pool: int


@dataclass(frozen=True, slots=True)
class Copy:
    """`KvPool.copy`."""

    pool: int
    source: tuple[int, ...]
    into: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A session's pages, and how many positions of them hold final tokens."""

    pages: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Forward:
    """`CausalModel.forward` of parts: tables, pending tokens and trees."""

    pool: int
    parts: tuple[tuple[Table, tuple[int, ...], TokenTree], ...]


@dataclass(frozen=True, slots=True)
class Logits:
    """`CausalModel.logits` of so many hidden states, which the leader sends."""

    num_rows: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Send the leader the heads of a layer from position `start` to the end of the table."""

    pool: int
    table: Table
    layer: int
    start: int


Order = Open | Close | Copy | Forward | Logits | Gather


class Followers(Protocol):
    """The other ranks; each does what it is told, in the order it was told."""

    def tell(self, order: Order) -> None:
        """Send an order to all of them. Does not wait."""
        ...

    def fail(self, reason: str) -> None:
        """The ranks have lost step: nothing that they compute means anything any more."""
        ...


@dataclass(frozen=True, slots=True)
class Team:
    """What rank 0 has besides its own part of a model."""

    ranks: Ranks
    followers: Followers


class Leader:
    """Rank 0's word to the others. Everything here happens on the thread that computes."""

    def __init__(self, ranks: Ranks, followers: Followers) -> None:
        self._ranks = ranks
        self._followers = followers
        self._num_pools = 0
        self._numbers: WeakKeyDictionary[KvPool, int] = WeakKeyDictionary()
        self._gone: list[int] = []

    def open(self, pool: KvPool) -> None:
        """Have the others make the same pool; they free it some time after this one is gone."""
        number = self._num_pools
        self._num_pools += 1
        self._numbers[pool] = number
        pool.peers = _LedPool(self, number)
        finalize(pool, self._gone.append, number)
        self.together(Open(number, pool.num_pages, len(pool.scratch)), lambda: None)

    def forward(self, pool: KvPool, parts: Sequence[Part], work: Callable[[], Tensor]) -> Tensor:
        """What `work`, the forward of these parts, gives when all ranks make it."""
        told = tuple(
            (Table(tuple(part.cache.pages), part.cache.count), tuple(part.pending), part.tree)
            for part in parts
        )
        return self.together(Forward(self._numbers[pool], told), work)

    def logits(self, hidden: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """What `head` makes of hidden states [rows, d] when all ranks do."""
        order = Logits(len(hidden))
        return self.together(order, lambda: head(self._ranks.told(hidden)))

    def heads(self, order: Gather, own: Tensor) -> Tensor:
        """All heads [2 * kv_heads, n, d] of what every rank has some of."""
        both = self.together(order, lambda: self._ranks.heads(own))
        assert both is not None, "the leader is rank 0"
        return both

    def together(self, order: Order, work: Callable[[], T]) -> T:
        """What `work` gives while the others do as ordered.

        A rank that stops halfway leaves the others waiting, and the next sum would mix up two
        forwards: so any error is the end of all ranks.
        """
        try:
            while self._gone:
                self._followers.tell(Close(self._gone.pop()))
            self._followers.tell(order)
            return work()
        except Exception as error:
            self._followers.fail(f"rank 0 failed at a step of all ranks: {error!r}")
            raise


class _LedPool:
    """`Peers` of one pool."""

    def __init__(self, leader: Leader, number: int) -> None:
        self._leader = leader
        self._number = number

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        order = Copy(self._number, tuple(source), tuple(into))
        self._leader.together(order, lambda: None)

    def heads(self, own: Tensor, pages: Sequence[int], layer: int, span: range) -> Tensor:
        order = Gather(self._number, Table(tuple(pages), span.stop), layer, span.start)
        return self._leader.heads(order, own)


class Follower:
    """Does what the leader says with this rank's part of the model."""

    def __init__(self, model: CausalModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._pools: dict[int, KvPool] = {}

    @torch.inference_mode()
    def do(self, order: Order) -> None:
        """Obey one order."""
        match order:
            case Open():
                self._open(order)
            case Close():
                del self._pools[order.pool]
            case Copy():
                self._pools[order.pool].copy(order.source, order.into)
            case Forward():
                self._forward(order)
            case Logits():
                self._logits(order.num_rows)
            case Gather():
                cache = self._cache(order.pool, order.table)
                self._ranks.heads(cache.gather(order.layer, order.start, order.table.count))

    def _open(self, order: Open) -> None:
        pool = self._model.pool(order.num_pages, scratch_rows=order.scratch_rows)
        pool.take(order.num_pages)  # all of them clear; the leader counts their users
        self._pools[order.pool] = pool

    def _forward(self, order: Forward) -> None:
        parts = [
            Part(self._cache(order.pool, table), pending, tree)
            for table, pending, tree in order.parts
        ]
        self._model.forward(parts)

    def _logits(self, num_rows: int) -> None:
        shape = (num_rows, self._model.hidden_size)
        hidden = torch.empty(shape, dtype=self._model.dtype, device=self._model.device)
        self._model.logits(self._ranks.told(hidden))

    def _cache(self, pool: int, table: Table) -> KvCache:
        limit = self._model.context_length
        return KvCache.over(self._pools[pool], table.pages, limit=limit, count=table.count)
