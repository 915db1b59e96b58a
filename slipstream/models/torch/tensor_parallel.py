"""Tensor parallelism: steps that rank 0 sends, and the worker of another rank that computes them.

Only rank 0 has sessions. Before it computes, it sends the shape of the forward, which begins with a
broadcast of rank 0's integers. The others hold the keys and values of their own heads in the same
pages, so that the same code makes the same forward there, captured as a graph with its broadcast
and sums where the device can. How steps travel is the caller's business.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from torch import Tensor

from slipstream.models.causal import CausalModel
from slipstream.models.decoder import Decoder
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvPool
from slipstream.models.torch.arrays import torch_dtype
from slipstream.models.torch.decoder import TorchDecoder
from slipstream.models.torch.packing import PackedDraws, PackedForward
from slipstream.models.torch.ranks import Ranks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A method of `TensorParallelWorker`, and its arguments."""

    method: Callable[..., None]
    arguments: tuple[Any, ...]


class Workers(Protocol):
    """The other ranks; each computes the steps in the order in which they were sent."""

    def send(self, step: WorkerStep) -> None:
        """Send a step to all of them. Does not wait."""

    def fail(self, reason: str) -> None:
        """Give all ranks up: they have lost step, and what they compute is worthless."""


@dataclass(frozen=True, slots=True)
class TensorParallelGroup:
    """Ranks of a model that is split; `workers` are the others, which rank 0 alone has. Where it
    `is_scaled`, each rank rounds its part of the linear layers to 8-bit floats."""

    ranks: Ranks
    workers: Workers | None = None
    is_scaled: bool = False


class SplitDecoder:
    """`Decoder` of a model whose parts are `own` here, on rank 0, and those of the other ranks.
    All methods are called on the thread that computes."""

    def __init__(self, own: Decoder, ranks: Ranks, workers: Workers) -> None:
        assert isinstance(own, TorchDecoder), "torch computes models that are split"
        self._own, self._ranks, self._workers = own, ranks, workers
        self.engine, self.numerics, self.rule = own.engine, own.numerics, own.rule
        self.weight_bytes, self.contenders = own.weight_bytes, own.contenders
        self.draws_on_device, self.workspace_bytes = own.draws_on_device, own.workspace_bytes
        self._num_pools = 0
        self._numbers: WeakKeyDictionary[KvPool, int] = WeakKeyDictionary()
        self._closed: list[int] = []

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        """Make the same pool on all ranks; the others free it some time after this one is gone."""
        pool = self._own.new_pool(num_pages, scratch_rows, lasts=lasts)
        number = self._num_pools
        self._num_pools += 1
        self._numbers[pool] = number
        pool.peers = _WorkerPools(self, self._ranks, number)
        finalize(pool, self._closed.append, number)
        about = (number, num_pages, scratch_rows, lasts)
        self.together(WorkerStep(TensorParallelWorker.open, about), lambda: None)
        return pool

    def forward(
        self, pool: KvPool, batch: Batch, draws: Iterable[Draw] = ()
    ) -> tuple[Tensor, list[int]]:
        """See `Decoder.forward`."""
        packed, each = self._own.pack(batch, draws)
        sent, drawn = replace(packed, values=packed.values[:0]), tuple(each)
        shapes = tuple(replace(own, draws=()) for own in drawn)
        step = WorkerStep(TensorParallelWorker.forward, (self._numbers[pool], sent, shapes))
        return self.together(step, lambda: self._own.compute(pool, packed, drawn))

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        step = WorkerStep(TensorParallelWorker.logits, (len(hidden),))
        logits: Tensor = self.together(
            step, lambda: self._own.logits(self._ranks.broadcast(hidden))
        )
        return logits

    def prepare(self, pool: KvPool) -> None:
        step = WorkerStep(TensorParallelWorker.prepare, (self._numbers[pool],))
        self.together(step, lambda: self._own.prepare(pool))

    def together(self, step: WorkerStep, work: Callable[[], T]) -> T:
        """Return what `work` gives while the others compute the step.

        A rank that stops halfway leaves the others waiting, and the next sum would mix up two
        forwards: so any error is the end of all ranks.
        """
        try:
            while self._closed:
                closing = (self._closed.pop(),)
                self._workers.send(WorkerStep(TensorParallelWorker.close, closing))
            self._workers.send(step)
            return work()
        except Exception as error:
            self._workers.fail(f"rank 0 failed at a step of all ranks: {error!r}")
            raise


class _WorkerPools:
    """`Peers` of one pool."""

    def __init__(self, driver: SplitDecoder, ranks: Ranks, number: int) -> None:
        self._driver, self._ranks, self._number = driver, ranks, number

    def copy(self, source: Sequence[int], into: Sequence[int]) -> None:
        slots = (self._number, tuple(source), tuple(into))
        step = WorkerStep(TensorParallelWorker.copy, slots)
        self._driver.together(step, lambda: None)

    def heads(self, own: Tensor, pages: Sequence[int], layer: int, span: range) -> Tensor | None:
        place = (self._number, tuple(pages), layer, span)
        step = WorkerStep(TensorParallelWorker.heads, place)
        return self._driver.together(step, lambda: self._ranks.heads(own))


class TensorParallelWorker:
    """Another rank: its part of the model and its pages, without sessions of its own."""

    def __init__(self, model: CausalModel, ranks: Ranks) -> None:
        assert isinstance(model.decoder, TorchDecoder), "torch computes models that are split"
        self._model, self._decoder, self._ranks = model, model.decoder, ranks
        self._pools: dict[int, KvPool] = {}

    @torch.inference_mode()
    def run(self, step: WorkerStep) -> None:
        """Compute one step."""
        step.method(self, *step.arguments)

    def open(self, number: int, num_pages: int, scratch_rows: int, lasts: bool) -> None:
        """Make the pool of this number: see `Decoder.new_pool`."""
        pool = self._decoder.new_pool(num_pages, scratch_rows, lasts=lasts)
        pool.take(num_pages)  # all of them clear; rank 0 counts their users
        self._pools[number] = pool

    def prepare(self, number: int) -> None:
        """See `Decoder.prepare`."""
        self._decoder.prepare(self._pools[number])

    def close(self, number: int) -> None:
        """Free a pool."""
        del self._pools[number]

    def copy(self, number: int, source: tuple[int, ...], into: tuple[int, ...]) -> None:
        """See `KvPool.copy`."""
        self._pools[number].copy(source, into)

    def forward(self, number: int, sent: PackedForward, draws: tuple[PackedDraws, ...]) -> None:
        """See `TorchDecoder.compute`; values and draws are rank 0's alone."""
        unknown = np.zeros(sum(sent.shape.sizes()), np.int32)
        self._decoder.compute(self._pools[number], replace(sent, values=unknown), draws)

    def logits(self, num_tokens: int) -> None:
        """Compute `CausalModel.logits` of so many hidden states, which rank 0 broadcasts."""
        dtype = torch_dtype(self._model.dtype)
        shape = (num_tokens, self._model.hidden_size)
        hidden = torch.empty(shape, dtype=dtype, device=self._model.device)
        self._decoder.logits(self._ranks.broadcast(hidden))

    def heads(self, number: int, pages: tuple[int, ...], layer: int, span: range) -> None:
        """Send rank 0 the heads of a layer at the positions of `span`, which lie in `pages`."""
        pool = self._pools[number]
        slots = pool.slots(pages)[span.start : span.stop]
        self._ranks.heads(pool.buffers.read(pool.layer(layer), slots))
