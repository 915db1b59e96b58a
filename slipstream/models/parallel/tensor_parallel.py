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
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvPool
from slipstream.models.parallel.ranks import Ranks
from slipstream.models.target.causal import CausalModel
from slipstream.models.target.token_layout import Part
from slipstream.models.torch_arrays import torch_dtype

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenPool:
    """Make pool number `pool`."""

    pool: int
    num_pages: int
    scratch_rows: int


@dataclass(frozen=True, slots=True)
class ClosePool:
    """Free a pool."""

    pool: int


@dataclass(frozen=True, slots=True)
class CopySlots:
    """`KvPool.copy`."""

    pool: int
    source: tuple[int, ...]
    into: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """A session's pages, and how many positions of them hold final tokens."""

    pages: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class RunForward:
    """`CausalModel.forward` of parts: tables, pending tokens and trees."""

    pool: int
    parts: tuple[tuple[BlockTable, tuple[int, ...], TokenTree], ...]


@dataclass(frozen=True, slots=True)
class RunLogits:
    """`CausalModel.logits` of so many hidden states, which rank 0 broadcasts."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class GatherHeads:
    """Send rank 0 the heads of a layer from position `start` to the end of the table."""

    pool: int
    table: BlockTable
    layer: int
    start: int


WorkerStep = OpenPool | ClosePool | CopySlots | RunForward | RunLogits | GatherHeads


class Workers(Protocol):
    """The other ranks; each computes the steps in the order in which they were sent."""

    def send(self, step: WorkerStep) -> None:
        """Send a step to all of them. Does not wait."""
        ...

    def fail(self, reason: str) -> None:
        """Give all ranks up: they have lost step, and what they compute is worthless."""
        ...


@dataclass(frozen=True, slots=True)
class TensorParallelGroup:
    """Ranks and workers of a model that is split, as rank 0 has them."""

    ranks: Ranks
    workers: Workers


class TensorParallelDriver:
    """Rank 0's side. All methods are called on the thread that computes."""

    def __init__(self, ranks: Ranks, workers: Workers) -> None:
        self._ranks = ranks
        self._workers = workers
        self._num_pools = 0
        self._numbers: WeakKeyDictionary[KvPool, int] = WeakKeyDictionary()
        self._closed: list[int] = []

    def open(self, pool: KvPool) -> None:
        """Make the same pool on the other ranks; they free it some time after this one is gone."""
        number = self._num_pools
        self._num_pools += 1
        self._numbers[pool] = number
        pool.peers = _WorkerPools(self, number)
        finalize(pool, self._closed.append, number)
        self.together(OpenPool(number, pool.num_pages, len(pool.scratch)), lambda: None)

    def forward(self, pool: KvPool, parts: Sequence[Part], work: Callable[[], Tensor]) -> Tensor:
        """Return what `work`, the forward of these parts, gives when all ranks make it."""
        sent = tuple(
            (BlockTable(tuple(part.cache.pages), part.cache.count), tuple(part.pending), part.tree)
            for part in parts
        )
        return self.together(RunForward(self._numbers[pool], sent), work)

    def logits(self, hidden: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what `head` makes of hidden states [n, d] when all ranks do."""
        step = RunLogits(len(hidden))
        return self.together(step, lambda: head(self._ranks.broadcast(hidden)))

    def heads(self, step: GatherHeads, own: Tensor) -> Tensor:
        """Return all heads [2 * kv_heads, n, d] of what every rank has some of."""
        both = self.together(step, lambda: self._ranks.heads(own))
        assert both is not None, "the driver is rank 0"
        return both

    def together(self, step: WorkerStep, work: Callable[[], T]) -> T:
        """Return what `work` gives while the others compute the step.

        A rank that stops halfway leaves the others waiting, and the next sum would mix up two
        forwards: so any error is the end of all ranks.
        """
        try:
            while self._closed:
                self._workers.send(ClosePool(self._closed.pop()))
            self._workers.send(step)
            return work()
        except Exception as error:
            self._workers.fail(f"rank 0 failed at a step of all ranks: {error!r}")
            raise


class _WorkerPools:
    """`Peers` of one pool."""

    def __init__(self, driver: TensorParallelDriver, number: int) -> None:
        self._driver = driver
        self._number = number

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        step = CopySlots(self._number, tuple(source), tuple(into))
        self._driver.together(step, lambda: None)

    def heads(self, own: Tensor, pages: Sequence[int], layer: int, span: range) -> Tensor:
        table = BlockTable(tuple(pages), span.stop)
        return self._driver.heads(GatherHeads(self._number, table, layer, span.start), own)


class TensorParallelWorker:
    """Another rank: its part of the model and its pages, without sessions of its own."""

    def __init__(self, model: CausalModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._pools: dict[int, KvPool] = {}

    @torch.inference_mode()
    def run(self, step: WorkerStep) -> None:
        """Compute one step."""
        match step:
            case OpenPool():
                pool = self._model.pool(step.num_pages, scratch_rows=step.scratch_rows)
                pool.take(step.num_pages)  # all of them clear; rank 0 counts their users
                self._pools[step.pool] = pool
            case ClosePool():
                del self._pools[step.pool]
            case CopySlots():
                self._pools[step.pool].copy(step.source, step.into)
            case RunForward():
                parts = [
                    Part(self._cache(step.pool, table), pending, tree)
                    for table, pending, tree in step.parts
                ]
                self._model.forward(parts)
            case RunLogits():
                shape = (step.num_tokens, self._model.hidden_size)
                dtype = torch_dtype(self._model.dtype)
                hidden = torch.empty(shape, dtype=dtype, device=self._model.device)
                self._model.logits(self._ranks.broadcast(hidden))
            case GatherHeads():
                cache = self._cache(step.pool, step.table)
                self._ranks.heads(cache.gather(step.layer, step.start, step.table.count))

    def _cache(self, pool: int, table: BlockTable) -> KvCache:
        limit = self._model.context_length
        return KvCache.over(self._pools[pool], table.pages, limit=limit, count=table.count)
