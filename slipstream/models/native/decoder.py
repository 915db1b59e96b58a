"""A decoder's forward in native code, over the same pool of keys and values as torch's.

The bits of a token depend on its prefix and the weights alone: not on the other tokens of a
forward, the form of a tree, threads or the processor.
"""

from collections.abc import Sequence

import numpy as np

from slipstream.models.dtypes import BFLOAT16, Array
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel, NativeTokens
from slipstream.models.native.source import WeightSource, head, last_norm, layer
from slipstream.models.numerics.rules import ANY_ROWS
from slipstream.models.target.rope import rotary_tables
from slipstream.models.target.token_layout import Part, lay_out


class NativeDecoder:
    """The forward and the head of one model. `kernels` names the instruction set, `weight_bytes`
    is what its weights take, `rule`: any number of tokens is computed together."""

    rule = ANY_ROWS

    def __init__(self, source: WeightSource, layout: KvLayout) -> None:
        """Copy the weights; the source's layers are released.

        Raises `NotNative` for a machine that native code can't serve.
        """
        arch = source.architecture
        self._model = NativeModel(_shape(source, layout), source.embedding())
        for number, rotary in enumerate(source.rotaries):
            self._model.set_rotary(*rotary_tables(rotary, arch.context_length), number)
        self._model.set_head(last_norm(source), head(source), is_tied=source.is_tied)
        self._logits_scaling = np.float32(arch.logits_scaling)
        for index, places in enumerate(zip(arch.windows, arch.layer_ropes, strict=True)):
            blocks = layer(source, index)
            self._model.set_layer(index, blocks, window=places[0], rotary=places[1])
            source.release(index)
        self.kernels, self.weight_bytes = self._model.kernels, self._model.weight_bytes
        self.contenders = self._model.contenders

    def forward(
        self, pool: KvPool, parts: Sequence[Part]
    ) -> tuple[Array, tuple[tuple[int, ...], ...]]:
        """Return hidden states [n, d], float32, part by part, and the tokens' slots by part.

        Keys and values are written to these slots. Raises `CapacityError` where there are no
        scratch slots left.
        """
        rows, layouts = NativeTokens(), lay_out(parts)
        for part, layout in zip(parts, layouts, strict=True):
            table, size = part.cache.table_address(), part.cache.num_slots
            for row in (layout.tokens[index] for index in layout.order):
                # What is not at the slot of its position: nodes above the row, maybe, and itself.
                above = () if row.path_slots is None else row.path_slots[: row.position - part.end]
                is_owned = not above and row.position < part.cache.num_slots
                is_in_place = is_owned and row.slot == part.cache.slot(row.position)
                rows.tokens.append(row.token)
                rows.positions.append(row.position)
                rows.slots.append(row.slot)
                rows.tables.append(table)
                rows.table_sizes.append(size)
                rows.in_table.append(row.position - len(above) + is_in_place)
                rows.add_line(() if is_in_place else (*above, row.slot))
        hidden = self._model.forward(pool, rows.batch(len(rows.tokens)))
        return hidden, tuple(layout.places for layout in layouts)

    def logits(self, hidden: Array) -> Array:
        """Logits [rows, vocab], float32, of hidden states [rows, d]."""
        logits = self._model.logits(hidden)
        return logits if self._logits_scaling == 1 else logits / self._logits_scaling


def _shape(source: WeightSource, layout: KvLayout) -> NativeShape:
    arch, scale = source.architecture, source.architecture.embedding_scale
    if arch.form.has_root_scale:
        scale = float(np.asarray(scale, np.float32).astype(source.dtype))
    return NativeShape(
        layers=arch.num_layers,
        hidden=arch.hidden,
        heads=arch.num_heads,
        key_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        mlp=arch.mlp,
        others=0,
        keys_are_bfloat16=layout.dtype == BFLOAT16,
        norm_epsilon=arch.norm_eps,
        attention_scale=arch.attention_scale,
        embedding_scale=scale,
        residual_scale=arch.residual_scale,
        is_gelu=arch.is_gelu,
    )
