"""Tensor parallelism: steps that rank 0 sends, and the worker of another rank that computes them.

Only rank 0 has sessions. Before it computes, it sends which pages hold which positions, and which
tokens come. The others hold the keys and values of their own heads in the same pages, so that the
same code makes the same forward there. How steps travel is the caller's business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

from slipstream.models.causal import CausalModel
from slipstream.models.decoder import Decoder
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.arrays import torch_dtype
from slipstream.models.torch.ranks import Ranks

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
class RunForward:
    """`Decoder.forward` of a batch without its block tables: the `pages` of each part."""

    pool: int
    batch: Batch
    pages: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RunLogits:
    """`CausalModel.logits` of so many hidden states, which rank 0 broadcasts."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class GatherHeads:
    """Send rank 0 the heads of a layer at the positions of `span`, which lie in `pages`."""

    pool: int
    pages: tuple[int, ...]
    layer: int
    span: range


WorkerStep = OpenPool | ClosePool | CopySlots | RunForward | RunLogits | GatherHeads


class Workers(Protocol):
    """The other ranks; each computes the steps in the order in which they were sent."""

    def send(self, step: WorkerStep) -> None:
        """Send a step to all of them. Does not wait."""

    def fail(self, reason: str) -> None:
        """Give all ranks up: they have lost step, and what they compute is worthless."""


@dataclass(frozen=True, slots=True)
class TensorParallelGroup:
    """Ranks of a model that is split; `workers` are the others, which rank 0 alone has."""

    ranks: Ranks
    workers: Workers | None = None


class SplitDecoder:
    """`Decoder` of a model whose parts are `own` here, on rank 0, and those of the other ranks.
    All methods are called on the thread that computes."""

    def __init__(self, own: Decoder, ranks: Ranks, workers: Workers) -> None:
        self._own, self._ranks, self._workers = own, ranks, workers
        self.engine, self.numerics, self.rule = own.engine, own.numerics, own.rule
        self.weight_bytes, self.contenders = own.weight_bytes, own.contenders
        self.draws_on_device = own.draws_on_device
        self._num_pools = 0
        self._numbers: WeakKeyDictionary[KvPool, int] = WeakKeyDictionary()
        self._closed: list[int] = []

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        """Make the same pool on all ranks; the others free it some time after this one is gone."""
        pool = self._own.new_pool(num_pages, scratch_rows, lasts=lasts)
        number = self._num_pools
        self._num_pools += 1
        self._numbers[pool] = number
        pool.peers = _WorkerPools(self, number)
        finalize(pool, self._closed.append, number)
        self.together(OpenPool(number, num_pages, scratch_rows), lambda: None)
        return pool

    def forward(
        self, pool: KvPool, batch: Batch, draws: Sequence[Draw] = ()
    ) -> tuple[Tensor, list[int]]:
        """See `Decoder.forward`."""
        starts = accumulate(batch.sizes[:-1], initial=0)
        pages = tuple(tuple(batch.block_tables[start].pages) for start in starts)
        step = RunForward(self._numbers[pool], replace(batch, block_tables=[]), pages)
        return self.together(step, lambda: self._own.forward(pool, batch, draws))

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        step = RunLogits(len(hidden))
        logits: Tensor = self.together(
            step, lambda: self._own.logits(self._ranks.broadcast(hidden))
        )
        return logits

    def prepare(self, pool: KvPool) -> None:
        pass

    def workspace_bytes(self, row_bytes: int, output_bytes: int) -> int:
        return self._own.workspace_bytes(row_bytes, output_bytes)

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

    def __init__(self, driver: SplitDecoder, number: int) -> None:
        self._driver = driver
        self._number = number

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        step = CopySlots(self._number, tuple(source), tuple(into))
        self._driver.together(step, lambda: None)

    def heads(self, own: Tensor, pages: Sequence[int], layer: int, span: range) -> Tensor:
        return self._driver.heads(GatherHeads(self._number, tuple(pages), layer, span), own)


class TensorParallelWorker:
    """Another rank: its part of the model and its pages, without sessions of its own."""

    def __init__(self, model: CausalModel, ranks: Ranks) -> None:
        self._model = model
        self._ranks = ranks
        self._pools: dict[int, KvPool] = {}

    @torch.inference_mode()
    def run(self, step: WorkerStep) -> None:
        """Compute one step."""
        decoder = self._model.decoder
        match step:
            case OpenPool():
                pool = decoder.new_pool(step.num_pages, step.scratch_rows)
                pool.take(step.num_pages)  # all of them clear; rank 0 counts their users
                self._pools[step.pool] = pool
            case ClosePool():
                del self._pools[step.pool]
            case CopySlots():
                self._pools[step.pool].copy(step.source, step.into)
            case RunForward():
                sizes = zip(step.pages, step.batch.sizes, strict=True)
                tables = [[self._cache(step.pool, pages)] * size for pages, size in sizes]
                batch = replace(step.batch, block_tables=list(chain.from_iterable(tables)))
                decoder.forward(self._pools[step.pool], batch)
            case RunLogits():
                shape = (step.num_tokens, self._model.hidden_size)
                dtype = torch_dtype(self._model.dtype)
                hidden = torch.empty(shape, dtype=dtype, device=self._model.device)
                decoder.logits(self._ranks.broadcast(hidden))
            case GatherHeads():
                cache = self._cache(step.pool, step.pages)
                self._ranks.heads(cache.gather(step.layer, step.span.start, step.span.stop))

    def _cache(self, pool: int, pages: Sequence[int]) -> KvCache:
        return KvCache.over(self._pools[pool], pages, limit=self._model.context_length)
