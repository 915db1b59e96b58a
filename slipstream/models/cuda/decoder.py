"""A model's forward in a few fixed shapes, captured where the device can: one transfer a round.

Everything between the integers that go in and the tokens that come out happens on the device:
positions, masks, attention over the pool's pages, the head, and the draw of tokens where
logits and a temperature give the distribution.
"""

from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slipstream.core.errors import CapacityError
from slipstream.models.cuda.buckets import Buckets, buckets_for
from slipstream.models.cuda.draws import draw_greedy_rows, draw_rows
from slipstream.models.cuda.graphs import MAX_GRAPHS, Replay
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.memory import temporary_bytes
from slipstream.models.torch.decoder import TorchDecoder, TorchSettings
from slipstream.models.torch.packing import ForwardShape, PackedForward, pack

_MAX_ROWS = 512


class CudaDecoder(TorchDecoder):
    """`Decoder` over static tensors: forwards over pools that last are captured in shapes; one that
    fits none, or gathers too much, is computed as it is."""

    draws_on_device = True

    def __init__(
        self,
        model: PreTrainedModel,
        layout: KvLayout,
        settings: TorchSettings,
        *,
        context_length: int,
    ) -> None:
        """Take the model over, for positions below `context_length`."""
        super().__init__(model, layout, settings)
        self.engine = "cuda"
        self.replay = Replay(torch.device(layout.device))
        self.buckets: Buckets = buckets_for(_MAX_ROWS, context_length, self.rule)
        self.max_bytes = temporary_bytes(layout.device)
        """Most bytes that a captured forward may gather."""
        self._pools: WeakSet[KvPool] = WeakSet()

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        pool = super().new_pool(num_pages, scratch_rows)
        if lasts:
            self._pools.add(pool)
        return pool

    def workspace_bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Return the most bytes that captures keep: one memory that all share for what a forward
        makes, and the outputs of each."""
        num_rows = self.buckets.rows[-1]
        return self.max_bytes + num_rows * (row_bytes + MAX_GRAPHS * output_bytes)

    @torch.inference_mode()
    def forward(
        self, pool: KvPool, batch: Batch, draws: Sequence[Draw] = ()
    ) -> tuple[Tensor, list[int]]:
        """See `Decoder.forward`: hidden states are overwritten where tokens are drawn."""
        packed = self._packed(pool, batch, draws)
        size = packed.shape.draws
        heat = [draw.temperature for draw in draws] + [0.0] * (size - len(draws))
        noise = [key for draw in draws for key in draw.keys] + [0] * (2 * (size - len(draws)))
        is_greedy = not any(heat)

        def body(values: Tensor, heat: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
            hidden, wanted = self.run(pool, packed.shape, values)
            if not size:
                return hidden, values[:0]
            logits = self._head(wanted).float()
            return hidden, draw_greedy_rows(logits) if is_greedy else draw_rows(logits, heat, keys)

        inputs = (
            torch.tensor(packed.values),
            torch.tensor(heat),
            torch.tensor(noise, dtype=torch.int32).view(size, 2),
        )
        if self.is_captured(pool, packed.shape):
            out, tokens = self.replay.run((id(pool), packed.shape, is_greedy), body, inputs)
        else:
            out, tokens = body(*(own.to(self._layout.device) for own in inputs))
        hidden = out[: packed.num_rows]
        return (hidden, tokens[: len(draws)].tolist()) if draws else (hidden.clone(), [])

    def is_captured(self, pool: KvPool, shape: ForwardShape) -> bool:
        """Return whether forwards of a shape over a pool are captured."""
        is_small = self._temporary_bytes(shape) <= self.max_bytes
        return pool in self._pools and is_small and self.buckets.has(shape)

    def _packed(self, pool: KvPool, batch: Batch, draws: Sequence[Draw]) -> PackedForward:
        wanted = [draw.index for draw in draws]
        try:
            return pack(pool, batch, wanted, self.buckets.shape)
        except CapacityError:
            return pack(pool, batch, wanted)

    def _temporary_bytes(self, shape: ForwardShape) -> int:
        """Bytes of the mask, and of one layer's keys and values: gathered, then laid out anew."""
        layout, columns = self._layout, shape.width + shape.segment_size
        cells = shape.segments * shape.segment_size * columns
        gathered = shape.segments * columns * layout.bytes_per_token // layout.num_layers
        return cells * self._attention.group * layout.dtype.itemsize + 2 * gathered
