"""A model's forward in a few fixed shapes, captured where the device can.

Everything between the integers that go in and the tokens that come out happens on the device:
positions, attention over the pool's pages, the head, and the draw of tokens where logits and a
temperature give the distribution.
"""

from collections.abc import Iterable, Iterator
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.core.types import SamplingParams
from slipstream.models.cuda.draws import DrawTables, draw_packed, is_plain, pack_draws, parts_of
from slipstream.models.cuda.graphs import Replay, sent
from slipstream.models.decoder import RowRule
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, KvLayout, KvPool, round_up
from slipstream.models.torch.decoder import TorchDecoder
from slipstream.models.torch.packing import (
    Buckets,
    PackedDraws,
    PackedForward,
    fit,
    pack,
    row_steps,
)
from slipstream.models.torch.paged import SPANS
from slipstream.models.torch.ranks import Ranks

_MAX_ROWS = 512


class CudaDecoder(TorchDecoder):
    """`Decoder` over static tensors: forwards over pools that last are captured, by the numbers of
    their tokens and of their sessions; one that fits no shape is computed as it is."""

    draws_on_device = True

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KvLayout,
        rule: RowRule | None,
        ranks: Ranks,
        *,
        context_length: int,
    ) -> None:
        """Take the model over, for positions below `context_length`."""
        super().__init__(model, layout, rule, ranks)
        self.replay = Replay(torch.device(layout.device))
        pages = round_up(context_length, BLOCK_SIZE) // BLOCK_SIZE
        self.buckets = Buckets(row_steps(_MAX_ROWS, self.rule), pages, self._tile)
        self._pools: WeakSet[KvPool] = WeakSet()
        text = model.config.get_text_config()
        self._num_heads: int = text.num_attention_heads // layout.num_ranks
        # Scores take more memory than logits.
        self._tables = DrawTables(self.buckets.rows[-1] // 4, text.vocab_size, layout.device)

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        pool = super().new_pool(num_pages, scratch_rows)
        if lasts:
            self._pools.add(pool)
        return pool

    def workspace_bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Return the most bytes that captures keep: one memory that all share for what a forward
        makes, and the outputs of each."""
        attended = 4 * self._num_heads * SPANS * (self._layout.head_dim + 2)
        num_outputs = sum(shape.rows for shape in self.buckets)
        kept = self._tables.num_bytes + num_outputs * output_bytes
        return self.buckets.rows[-1] * (row_bytes + attended) + kept

    def pack(
        self, batch: Batch, draws: Iterable[Draw]
    ) -> tuple[PackedForward, Iterable[PackedDraws]]:
        return pack(batch, self._tile, self.buckets.shape), self._packed(draws)

    @torch.inference_mode()
    def compute(
        self, pool: KvPool, packed: PackedForward, draws: Iterable[PackedDraws]
    ) -> tuple[Tensor, list[int]]:
        """Return what `forward` does: hidden states are overwritten where tokens are drawn. Draws
        are packed while the device computes the forward."""
        values, shape = torch.from_numpy(packed.values), packed.shape

        def body(values: Tensor) -> tuple[Tensor]:
            return (self.run(pool, shape, values),)

        if packed.is_bucket and pool in self._pools:
            (out,) = self.replay.run((id(pool), shape), body, (values,))
        else:
            (out,) = body(sent(values, self._layout.device))
        hidden = out[: packed.num_rows]
        tokens = [self._drawn(hidden, some) for some in draws]
        return (hidden, torch.cat(tokens).tolist()) if tokens else (hidden.clone(), [])

    @torch.inference_mode()
    def prepare(self, pool: KvPool) -> None:
        slot = pool.scratch.start  # no session's keys are there
        for shape in self.buckets:
            rows = shape.rows
            zeros, tables = [0] * rows, [KvCache(pool, limit=0)] * rows
            sizes = [rows] if shape.sessions == 1 else [1] * rows
            batch = Batch(zeros, zeros, [slot] * rows, tables, zeros, [(slot,)] * rows, sizes)
            for sampling in (SamplingParams(), SamplingParams(temperature=1.0, top_k=1)):
                self.forward(pool, batch, [Draw(row, sampling, (0, 0)) for row in range(rows)])

    def _packed(self, made: Iterable[Draw]) -> Iterator[PackedDraws]:
        if not (draws := [*made]):
            return
        are_plain = all(is_plain(draw) for draw in draws)
        most = self.buckets.rows[-1] if are_plain else self._tables.num_fitting(draws)
        if len(draws) > most:
            yield from self._packed(draws[:most])
            yield from self._packed(draws[most:])
            return
        size = fit(len(draws), self.buckets.rows, what="tokens to draw behind")
        values = pack_draws(draws, size, are_plain=are_plain)
        yield PackedDraws(values, size, are_plain, tuple(draws))

    def _drawn(self, hidden: Tensor, packed: PackedDraws) -> Tensor:
        """Return the tokens [n] behind some of the states [R, d]."""
        values = sent(torch.from_numpy(packed.values), hidden.device)
        tables = None if packed.are_plain else self._tables
        if tables:
            tables.send(packed.draws)

        def body(wanted: Tensor, values: Tensor) -> tuple[Tensor]:
            return (draw_packed(self._head(wanted), values, tables),)

        key = (packed.size, packed.are_plain)
        (tokens,) = self.replay.run(key, body, (hidden[parts_of(values)[-1][:, 0]], values))
        return tokens[: len(packed.draws)].clone()
