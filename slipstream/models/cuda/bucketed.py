"""A model's forward in a few fixed shapes, captured where the device can: one transfer a round.

Everything between the integers that go in and the tokens that come out happens on the device:
positions, masks, attention over the pool's pages, the head, and the draw of tokens where
logits and a temperature give the distribution.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor

from slipstream.core.errors import CapacityError
from slipstream.models.cuda.buckets import (
    Buckets,
    ForwardShape,
    PackedForward,
    key_widths,
    pack,
    powers,
    row_steps,
)
from slipstream.models.cuda.draws import draw_greedy_rows, draw_rows
from slipstream.models.cuda.graphs import MAX_GRAPHS, Replay
from slipstream.models.kv.paged import Kernel, PagedAttention, unpack
from slipstream.models.kv.pool import KvPool
from slipstream.models.memory import temporary_bytes
from slipstream.models.numerics.rules import RowRule
from slipstream.models.target.token_layout import Draw, Part
from slipstream.models.torch_arrays import torch_dtype

if TYPE_CHECKING:
    from slipstream.models.target.torch_decoder import TorchDecoder

_MAX_SEGMENT_SIZE = 256


def buckets_for(*, max_rows: int, context_length: int, rule: RowRule) -> Buckets:
    """Shapes for forwards of up to `max_rows` rows whose products obey `rule`."""
    high = min(rule.max_rows, max_rows)
    rows = row_steps(max_rows, min_rows=min(rule.min_rows, max_rows), max_rows=high)
    return Buckets(
        rows=rows,
        segments=powers(rows[-1]),
        segment_size=powers(min(_MAX_SEGMENT_SIZE, rows[-1])),
        widths=key_widths(context_length),
    )


class BucketedForward:
    """Forwards of one model over the pools it is given, through static tensors."""

    def __init__(
        self, model: "TorchDecoder", kernel: Kernel, buckets: Buckets, replay: Replay
    ) -> None:
        self._model = model
        self._kernel = kernel
        self._buckets = buckets
        self.replay = replay
        self._pools: WeakSet[KvPool] = WeakSet()
        self._max_bytes = temporary_bytes(model.layout.device)
        """A forward that gathers more is left to the path without shapes."""

    def static_bytes(self, row_bytes: int, output_bytes: int) -> int:
        """Return the most bytes that captures keep: one memory that all share for what a forward
        makes, `row_bytes` a row, and the outputs of each, `output_bytes` a row."""
        num_rows = self._buckets.rows[-1]
        return self._max_bytes + num_rows * (row_bytes + MAX_GRAPHS * output_bytes)

    def serve(self, pool: KvPool) -> None:
        """Capture forwards over an engine's pool, which stays."""
        self._pools.add(pool)

    def pack(
        self, pool: KvPool, parts: Sequence[Part], draws: Sequence[Draw] = ()
    ) -> PackedForward | None:
        """The forward as it fits a shape; None where none holds it, or the pool is not served."""
        if pool not in self._pools:
            return None
        try:
            packed = pack(parts, [draw.index for draw in draws], self._buckets)
        except CapacityError:
            return None
        return packed if self._temporary_bytes(packed.shape) <= self._max_bytes else None

    @torch.inference_mode()
    def forward(
        self, pool: KvPool, packed: PackedForward, draws: Sequence[Draw] = ()
    ) -> tuple[Tensor, Tensor]:
        """Final hidden states [inputs, d] in input order and the tokens [draws] int64 drawn.

        Both stay on the device, and are overwritten by the next forward of the same shape.
        """
        shape, size = packed.shape, packed.shape.draws
        heat = [draw.temperature for draw in draws] + [0.0] * (size - len(draws))
        is_greedy = not any(heat)
        noise = [key for draw in draws for key in draw.keys] + [0] * (2 * (size - len(draws)))
        inputs = (
            torch.tensor(packed.values),
            torch.tensor(heat),
            torch.tensor(noise, dtype=torch.int32).view(size, 2),
        )

        def body(values: Tensor, heat: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
            return self._body(pool, shape, values, None if is_greedy else (heat, keys))

        key = (id(pool), shape, is_greedy)
        hidden, tokens = self.replay.run(key, body, inputs)
        return hidden[: packed.num_rows], tokens[: len(draws)]

    def _body(
        self, pool: KvPool, shape: ForwardShape, values: Tensor, noise: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        model = self._model
        attention = PagedAttention(model.group, torch_dtype(model.layout.dtype), self._kernel)
        batch = unpack(values, shape, attention)
        hidden = model.run(batch.tokens, batch.positions, batch.segments, pool)
        if not shape.draws:
            return hidden[batch.order], values[:0]
        logits = model.head(hidden[batch.wanted]).float()
        tokens = draw_greedy_rows(logits) if noise is None else draw_rows(logits, *noise)
        return hidden[batch.order], tokens

    def _temporary_bytes(self, shape: ForwardShape) -> int:
        """Bytes of the mask, and of one layer's keys and values: gathered, then laid out anew."""
        layout, columns = self._model.layout, shape.width + shape.segment_size
        cells = shape.segments * shape.segment_size * columns
        gathered = shape.segments * columns * layout.bytes_per_token // layout.num_layers
        return cells * self._model.group * layout.dtype.itemsize + 2 * gathered
