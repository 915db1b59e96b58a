"""A rank that is led (`leading.py`): no sessions of its own, a part of the model, and its pages.

Knows no processes: somebody else brings the orders.
"""

import torch

from slipstream.models.cache import KvCache
from slipstream.models.causal import CausalModel
from slipstream.models.leading import Close, Copy, Forward, Gather, Logits, Open, Order, Table
from slipstream.models.pool import KvPool
from slipstream.models.ranks import Ranks
from slipstream.models.rows import Part


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
