"""A decoder's forward in native code, over the same pool of keys and values as torch's.

The bits of a token depend on its prefix and the weights alone: not on the other tokens of a
forward, the form of a tree, threads or the processor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.models.gguf_model import gguf_blocks
from slipstream.models.invariance import ANY_ROWS
from slipstream.models.kv_layout import KvLayout
from slipstream.models.native import gguf_weights, weights
from slipstream.models.native.library import NotNative, Shape
from slipstream.models.native.model import NativeModel, Rows
from slipstream.models.pool import KvPool
from slipstream.models.rows import Part, lay_out


class NativeDecoder:
    """The forward and the head of one model. `kernels` names the instruction set, `weight_bytes`
    is what its weights take, `rule` says that any rows are computed together."""

    rule = ANY_ROWS

    def __init__(self, model: Any, layout: KvLayout, context_length: int) -> None:
        """Copies the weights of a transformers model; its layers are empty afterwards.

        Raises `NotNative` for a model or a machine that native code can't serve.
        """
        weights.check_usual(model)
        body, blocks = model.base_model, gguf_blocks(model)
        if blocks is None:
            embedding = weights.plain(model.get_input_embeddings().weight)
            head, layers = weights.head_weights(model), weights.layers(model)
        else:
            embedding, head = gguf_weights.embedding(blocks), gguf_weights.head(blocks)
            layers = gguf_weights.layers(blocks)
        self._model = NativeModel(_shape(model, layout), embedding)
        self._model.set_rotary(*_rotary_tables(body.rotary_emb, context_length))
        self._model.set_head(weights.norm_weight(body.norm), head)
        for index, layer in enumerate(layers):
            self._model.set_layer(index, layer)
            body.layers[index] = nn.Identity()
        self.kernels, self.weight_bytes = self._model.kernels, self._model.weight_bytes

    def forward(
        self, pool: KvPool, parts: Sequence[Part]
    ) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        """Hidden states [rows, d], float32, part by part, and the rows' slots by part.

        Keys and values are written to the rows' slots. Raises `CapacityError` where there are no
        scratch slots left.
        """
        rows, layouts = Rows(), lay_out(parts)
        for part, layout in zip(parts, layouts, strict=True):
            table = part.cache.table(part.cache.num_slots).data_ptr()
            for row in (layout.rows[at] for at in layout.order):
                # What is not at the slot of its position: nodes above the row, maybe, and itself.
                above = () if row.line is None else row.line[: row.position - part.end]
                is_owned = not above and row.position < part.cache.num_slots
                is_in_place = is_owned and row.slot == part.cache.slot(row.position)
                rows.tokens.append(row.token)
                rows.positions.append(row.position)
                rows.slots.append(row.slot)
                rows.tables.append(table)
                rows.in_table.append(row.position - len(above) + is_in_place)
                rows.add_line(() if is_in_place else (*above, row.slot))
        hidden = self._model.forward(pool, rows.batch(len(rows.tokens)))
        return hidden, tuple(layout.places for layout in layouts)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab], float32, of hidden states [rows, d]."""
        return self._model.logits(hidden)


def _rotary_tables(rotary: Any, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head_dim / 2], float32, of transformers' frequencies and scaling.

    Computed in float64, so that rounding hides in which way a processor computes them.
    """
    positions = torch.arange(length, dtype=torch.float32)[:, None]
    angles = (positions * rotary.inv_freq.float()).double()
    cos, sin = (part * rotary.attention_scaling for part in (angles.cos(), angles.sin()))
    return cos.float(), sin.float()


def _shape(model: Any, layout: KvLayout) -> Shape:
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
        others=0,
        keys_are_bfloat16=layout.dtype == torch.bfloat16,
        norm_epsilon=model.base_model.norm.variance_epsilon,
        attention_scale=block.scaling,
    )
