"""A decoder's forward in native code, over the same pool of keys and values as torch's.

The bits of a token depend on its prefix and the weights alone: not on the other tokens of a
forward, the form of a tree, threads or the processor.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from slipstream.models.glide_target import TargetParts, target_parts
from slipstream.models.invariance import ANY_ROWS
from slipstream.models.kv_layout import KvLayout
from slipstream.models.native import weights
from slipstream.models.native.library import Batch, Cache, NotNative, Shape, kernels, library, team
from slipstream.models.native.weights import LayerWeights, Weights
from slipstream.models.pool import KvPool
from slipstream.models.rows import Part, lay_out

_HEAD = -1
_NO_MEMORY = "there is no memory for the native weights"


class NativeDecoder:
    """The forward and the head of one model. `kernels` names the instruction set, `weight_bytes`
    is what its weights take, `rule` says that any rows are computed together."""

    rule = ANY_ROWS

    def __init__(self, model: Any, layout: KvLayout, context_length: int) -> None:
        """Copies the weights of a transformers model; its layers are empty afterwards.

        Raises `NotNative` for a model or a machine that native code can't serve.
        """
        self.kernels = kernels()
        weights.check_usual(model)
        body, parts = model.base_model, target_parts(model)
        self._library = library()
        self._hidden_size, self._vocab_size = parts.hidden_size, parts.head.shape[0]
        self._embedding = parts.embeddings.contiguous()
        self.weight_bytes = self._embedding.nbytes
        shape = _shape(model, layout, context_length)
        self._handle = self._new(shape, parts)
        self._free = finalize(self, self._library.slipstream_free_model, self._handle)
        self._check(self._set(_HEAD, 0, weights.head_weights(model)))
        for index, layer in enumerate(weights.layers(model)):
            self._set_layer(index, layer)
            body.layers[index] = nn.Identity()
        self._set_norms(_HEAD, weights.norm_weight(body.norm), None, None, None)

    def forward(
        self, pool: KvPool, parts: Sequence[Part]
    ) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Hidden states [rows, d], float32, part by part, and the rows' slots by part.

        Keys and values are written to the rows' slots. Raises `CapacityError` where there are no
        scratch slots left.
        """
        batch = _Arrays(parts)
        hidden = torch.empty(len(batch.tokens), self._hidden_size)
        buffers = [pool.layer(at).data_ptr() for at in range(pool.layout.num_layers)]
        pointers = (c_void_p * len(buffers))(*buffers)
        cache = Cache(ctypes.cast(pointers, c_void_p), pool.scratch.stop)
        self._check(
            self._library.slipstream_forward(
                self._handle, ctypes.byref(cache), ctypes.byref(batch.batch), hidden.data_ptr()
            )
        )
        return hidden, batch.places

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab], float32, of hidden states [rows, d]."""
        hidden = hidden.float().contiguous()
        out = torch.empty(len(hidden), self._vocab_size)
        self._check(
            self._library.slipstream_logits(
                self._handle, hidden.data_ptr(), len(hidden), out.data_ptr()
            )
        )
        return out

    def _new(self, shape: Shape, parts: TargetParts) -> int:
        tables = _rotary_tables(parts.rotary, shape.positions)
        handle: int | None = self._library.slipstream_model(
            ctypes.byref(shape),
            self.kernels.encode(),
            team(torch.get_num_threads()),
            *(table.data_ptr() for table in tables),
            self._embedding.data_ptr(),
            self._embedding.dtype == torch.bfloat16,
        )
        if handle is None:
            raise MemoryError(_NO_MEMORY)
        return handle

    def _set_layer(self, index: int, layer: LayerWeights) -> None:
        for place, matrix in enumerate(layer.matrices):
            self._check(self._set(index, place, matrix))
        own = (layer.before_attention, layer.before_mlp, layer.query_norm, layer.key_norm)
        self._set_norms(index, *own)

    def _set(self, layer: int, place: int, matrix: Weights) -> int:
        outputs, inputs = matrix.matrix.shape
        bias = None if matrix.bias is None else matrix.bias.data_ptr()
        self.weight_bytes += matrix.matrix.nbytes
        values = matrix.matrix.data_ptr()
        status: int = self._library.slipstream_set_matrix(
            self._handle, layer, place, matrix.kind, outputs, inputs, values, bias
        )
        return status

    def _set_norms(self, layer: int, *norms: Tensor | None) -> None:
        pointers = [None if norm is None else norm.data_ptr() for norm in norms]
        self._check(self._library.slipstream_set_norms(self._handle, layer, *pointers))

    def _check(self, status: int) -> None:
        if status:
            raise MemoryError(_NO_MEMORY)


class _Arrays:
    """The tokens of a forward, as the library takes them. Holds what `batch` points to."""

    def __init__(self, parts: Sequence[Part]) -> None:
        layouts = lay_out(parts)
        self.places = tuple(layout.places for layout in layouts)
        self.tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        in_table: list[int] = []
        addresses: list[int] = []
        lines: list[int] = []
        line_first = [0]
        tables = []
        for part, layout in zip(parts, layouts, strict=True):
            table = part.cache.table(part.cache.num_slots)
            tables.append(table)
            for row in (layout.rows[at] for at in layout.order):
                self.tokens.append(row.token)
                positions.append(row.position)
                slots.append(row.slot)
                addresses.append(table.data_ptr())
                # What is not at the slot of its position: nodes above the row, maybe, and itself.
                above = () if row.line is None else row.line[: row.position - part.end]
                in_table.append(row.position - len(above))
                lines += (*above, row.slot)
                line_first.append(len(lines))
        arrays = (self.tokens, positions, slots, addresses, in_table, lines, line_first)
        self._kept = (tables, [torch.tensor(values, dtype=torch.int64) for values in arrays])
        pointers = [array.data_ptr() for array in self._kept[1]]
        self.batch = Batch(len(self.tokens), *pointers)


def _rotary_tables(rotary: Any, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim / 2], float32, of transformers' frequencies and scaling.

    Computed in float64, so that rounding hides in which way a processor computes them.
    """
    positions = torch.arange(length, dtype=torch.float32)[:, None]
    angles = (positions * rotary.inv_freq.float()).double()
    cos, sin = (part * rotary.attention_scaling for part in (angles.cos(), angles.sin()))
    return cos.float(), sin.float()


def _shape(model: Any, layout: KvLayout, context_length: int) -> Shape:
    config, block = model.config.get_text_config(), model.base_model.layers[0].self_attn
    if not layout.head_dim % 2 == 0:
        raise NotNative(f"its heads have {layout.head_dim} elements, an odd number")
    return Shape(
        layers=layout.num_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        mlp=config.intermediate_size,
        positions=context_length,
        keys_are_bfloat16=layout.dtype == torch.bfloat16,
        norm_epsilon=model.base_model.norm.variance_epsilon,
        attention_scale=block.scaling,
    )
