"""A decoder's forward in native code, over the same pool of keys and values as torch's.

The bits of a token depend on its prefix and the weights alone: not on the other tokens of a
forward, the form of a tree, threads or the processor.
"""

from collections.abc import Sequence

import numpy as np

from slipstream.core.verify.draws import FindContenders
from slipstream.models.decoder import ANY_ROWS, Numerics
from slipstream.models.dtypes import BFLOAT16, Array
from slipstream.models.format.architecture import NORM
from slipstream.models.format.rope import rotary_tables
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.native.library import NativeShape
from slipstream.models.native.model import NativeModel
from slipstream.models.native.source import WeightSource, head, layer, norm


class NativeDecoder:
    """`Decoder` of one model; any number of tokens is computed together."""

    numerics: Numerics = "invariant"
    rule = ANY_ROWS
    draws_on_device = False

    def __init__(self, source: WeightSource, layout: KvLayout) -> None:
        """Copy the weights; the source's layers are released.

        Raises `NotNative` for a machine that native code can't serve.
        """
        self._layout, arch = layout, source.architecture
        self._model = NativeModel(_shape(source, layout), source.embedding())
        for number, rotary in enumerate(source.rotaries):
            self._model.set_rotary(*rotary_tables(rotary, arch.context_length), number)
        self._model.set_head(norm(source, NORM), head(source), is_tied=source.is_tied)
        self._logits_scaling = np.float32(arch.logits_scaling)
        for index, places in enumerate(zip(arch.windows, arch.layer_ropes, strict=True)):
            blocks = layer(source, index)
            self._model.set_layer(index, blocks, window=places[0], rotary=places[1])
            source.release(index)
        self.engine, self.weight_bytes = f"native {self._model.kernels}", self._model.weight_bytes
        self.contenders: FindContenders | None = self._model.contenders
        self.roofline = self._model.roofline

    def new_pool(self, num_pages: int, scratch_rows: int, *, lasts: bool = True) -> KvPool:
        return KvPool(self._layout, num_pages, scratch_rows=scratch_rows)

    def forward(
        self, pool: KvPool, batch: Batch, draws: Sequence[Draw] = ()
    ) -> tuple[Array, list[int]]:
        """See `Decoder.forward`; states are float32. Tokens are drawn by their logits."""
        return self._model.forward(pool, batch, num_kept=len(batch)), []

    def logits(self, hidden: Array) -> Array:
        """Logits [rows, vocab], float32, of hidden states [rows, d]."""
        logits = self._model.logits(hidden)
        return logits if self._logits_scaling == 1 else logits / self._logits_scaling

    def workspace_bytes(self, row_bytes: int, output_bytes: int) -> int:
        return 0


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
        num_cross=0,
        keys_are_bfloat16=layout.dtype == BFLOAT16,
        norm_epsilon=arch.norm_eps,
        attention_scale=arch.attention_scale,
        embedding_scale=scale,
        residual_scale=arch.residual_scale,
        is_gelu=arch.is_gelu,
    )
