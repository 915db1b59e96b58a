"""A model in native code: its weights, its buffers, its threads, see `src/api.cpp`; and a decoder.

The bits of a token depend on its prefix and the weights alone: not on the other tokens of a
forward, the form of a tree, threads or the processor.
"""

from array import array
from collections.abc import Iterable, Sequence
from ctypes import addressof, byref, c_char, c_double, c_float, c_void_p, sizeof
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any
from weakref import finalize

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.core.verify.draws import FindContenders
from slipstream.models.decoder import ANY_ROWS, Decoder
from slipstream.models.dtypes import BFLOAT16, Array
from slipstream.models.format.architecture import NORM
from slipstream.models.format.rope import rotary_tables
from slipstream.models.kv.batch import Batch, Draw
from slipstream.models.kv.pool import KvLayout, KvPool
from slipstream.models.native.library import (
    Cache,
    Matrix,
    NativeBatch,
    NativeShape,
    call,
    kernels,
    library,
    team,
)
from slipstream.models.native.source import WeightSource, head, layer, norm
from slipstream.models.native.weights import BlockWeights, Weights, as_float32
from slipstream.models.threads import num_threads

_LAST, _FEATURES = -1, -2
_INTO, _OUT = 0, 1
_ANCESTORS = 5
"""Place of the ancestors' slots among the arrays of a batch."""


@dataclass(slots=True)
class CrossKv:
    """Keys and values of another model that each token of a batch reads: of `num_read` positions,
    and layer by layer the addresses of both, their stride and their positions, `places`. Or what an
    EAGLE-3 head reads, `features` [n, d], and the memory of those that it gives, `outputs` [m, d]:
    a row for each token that goes on, or for each position that a chain may have."""

    num_read: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    features: Array | None = None
    outputs: Array | None = None

    def make_outputs(self, num_rows: int) -> None:
        """Make room for so many rows of `outputs` where there are features."""
        if self.features is not None:
            self.outputs = np.empty((num_rows, self.features.shape[1]), np.float32)


class NativeModel:
    """Embedding, layers and head. `kernels` names the instruction set. Rotary factors and all
    weights have to be set before a forward."""

    def __init__(self, shape: NativeShape, embedding: Weights) -> None:
        """`embedding` [vocab, d] stays where it is. Raises `NotNative`."""
        self.kernels = kernels()
        self._library = library()
        self._shape = shape
        embedding = embedding.in_order()
        self._embedding: Weights | None = embedding
        self._num_outputs = 0
        made, matrix = c_void_p(), byref(embedding.as_matrix())
        arguments = (byref(shape), self.kernels.encode(), team(num_threads()), matrix)
        call("model", *arguments, byref(made))
        self._handle = made.value
        self._free = finalize(self, self._library.slipstream_free_model, self._handle)
        self._free.atexit = False  # a thread may still compute with it

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        packed: int = self._library.slipstream_weight_bytes(self._handle)
        return packed + (0 if self._embedding is None else self._embedding.matrix.nbytes)

    def set_rotary(self, cos: Array, sin: Array, number: int = 0) -> None:
        """Rotary factors [positions, rotary_dim / 2], float32, of all positions."""
        cos, sin = as_float32(cos), as_float32(sin)
        if cos.shape != sin.shape:
            raise ModelError(f"cos has the shape {cos.shape}, but sin {sin.shape}")
        self._do("set_rotary", number, *cos.shape, _floats(cos)[0], *_floats(sin))

    def set_layer(
        self, index: int, blocks: Iterable[BlockWeights], *, window: int = 0, rotary: int = 0
    ) -> None:
        """Copy a layer's blocks: self-attention, attentions over others' keys, MLP. The first sees
        the last `window` positions, 0 is all; `rotary` is the number of its factors, or -1."""
        self._do("set_layer", index, window, rotary)
        for number, block in enumerate(blocks):
            self._set_matrices(index, number, _INTO, block.into)
            self._set_matrices(index, number, _OUT, [block.out])
            norms = (block.norm, block.query_norm, block.key_norm, block.norm_after)
            for place, own in enumerate(norms):
                if own is not None:
                    self._do("set_norm", index, number, place, *_floats(own))

    def set_head(self, norm: Array, head: Weights, *, is_tied: bool = False) -> None:
        """Copy the last norm's weight [d], float32, and the head. One that `is_tied` has the rows
        of the embedding, which is held no longer where the head gives them exactly."""
        self._num_outputs = len(head.matrix)
        self._set_matrices(_LAST, 0, _INTO, [head])
        self._do("set_norm", _LAST, 0, 0, *_floats(norm))
        embedding = self._embedding
        if is_tied and embedding and head.has_all_of(embedding) and self._do("tie"):
            self._embedding = None

    def set_feature_norm(self, norm: Array) -> None:
        """Copy the weight [d], float32, of the norm of features."""
        self._do("set_norm", _FEATURES, 0, 0, *_floats(norm))

    def forward(
        self, pool: KvPool, batch: Batch, *, num_kept: int, cross: CrossKv | None = None
    ) -> Array:
        """Hidden states [num_kept, d], float32, of the first tokens behind the last norm; only
        these go through the last layer. Writes keys and values, and `cross.outputs`."""
        hidden = np.empty((num_kept, self._shape.hidden), np.float32)
        given = _Given(pool, batch, num_kept, cross or CrossKv())
        self._do("forward", byref(given.cache), byref(given.batch), *_floats(hidden))
        return hidden

    def follow(
        self, pool: KvPool, batch: Batch, cross: CrossKv, num_chains: int, *own: Any
    ) -> None:
        """Follow chains behind the first tokens of a batch; `own` is what `slipstream_follow` takes
        of them, see `src/api_drafts.cpp`."""
        given = _Given(pool, batch, num_chains, cross)
        self._do("follow", byref(given.cache), byref(given.batch), *own)

    def logits(self, hidden: Array) -> Array:
        """Outputs of the head [rows, outputs], float32, for hidden states [rows, d]."""
        out = np.empty((len(hidden), self._num_outputs), np.float32)
        self._do("logits", *_floats(hidden), *_floats(out))
        return out

    def contenders(
        self, logits: Array, temperature: float, keys: tuple[int, int]
    ) -> tuple[Array, float] | None:
        tokens, best = np.empty(len(logits), np.int32), c_float()
        found = (byref(best), *_place(tokens))
        count = self._do("sampling_candidates", *_floats(logits), temperature, *keys, *found)
        return (tokens[:count], best.value) if count else None

    def roofline(self) -> list[float]:
        """Return, measured, the figures of `Roofline` in `src/roofline.h`."""
        figures = (c_double * 4)()
        self._do("roofline", figures)
        return list(figures)

    def _set_matrices(self, layer: int, block: int, place: int, parts: Sequence[Weights]) -> None:
        own = [part.in_order() for part in parts]
        matrices = (Matrix * len(own))(*(part.as_matrix() for part in own))
        self._do("set_matrices", layer, block, place, matrices, len(own))

    def _do(self, name: str, *arguments: Any) -> int:
        return call(name, self._handle, *arguments)


class NativeDecoder(Decoder):
    """`Decoder` of one model; any number of tokens is computed together."""

    numerics = "invariant"
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
        self, pool: KvPool, batch: Batch, draws: Iterable[Draw] = ()
    ) -> tuple[Array, list[int]]:
        """See `Decoder.forward`; states are float32. Tokens are drawn by their logits."""
        return self._model.forward(pool, batch, num_kept=len(batch)), []

    def logits(self, hidden: Array) -> Array:
        logits = self._model.logits(hidden)
        return logits if self._logits_scaling == 1 else logits / self._logits_scaling


class _Given:
    """A pool and a batch as native code takes them, and the memory that these are in."""

    def __init__(self, pool: KvPool, batch: Batch, num_kept: int, cross: CrossKv) -> None:
        first, count = addressof(pool.addresses), pool.layout.num_layers
        self.cache = Cache(first, pool.scratch.stop, count, pool.layer(0).nbytes)
        if kept := pool.layout.hidden_layers:
            self.cache.states = first + count * sizeof(c_void_p)
            self.cache.state_bytes = pool.layer(count + kept[0]).nbytes
        lists = _lists(batch, cross)
        self._numbers = array("q", chain.from_iterable(lists))
        place, places = self._numbers.buffer_info()[0], list[int | None]()
        for numbers in lists:
            places.append(place if numbers else None)
            place += self._numbers.itemsize * len(numbers)
        arrays = [own for own in (cross.features, cross.outputs) if own is not None]
        own = chain.from_iterable(map(_floats, arrays))
        self.batch = NativeBatch(len(batch), num_kept, *places, len(lists[_ANCESTORS]), *own)


def _lists(batch: Batch, cross: CrossKv) -> Sequence[Sequence[int]]:
    """Return the arrays of `Batch` in `src/model.h`, in its order."""
    first = [0, *accumulate(map(len, batch.ancestors))]
    tables = [table.table_address() for table in batch.block_tables]
    sizes = [table.num_slots for table in batch.block_tables]
    each = (batch.tokens, batch.positions, batch.slots, tables, batch.num_seen)
    counts = {*map(len, each), len(batch.ancestors)}
    if counts != {len(batch)} or len(cross.num_read) not in (0, len(batch)):
        raise ModelError(f"there are {len(batch)} tokens, but not as many places")
    ancestors = list(chain.from_iterable(batch.ancestors))
    return (*each, ancestors, first, cross.num_read, cross.places, sizes)


def _floats(values: Array) -> tuple[int, int]:
    """Return where an array of float32 is, and its elements. Raises `ModelError` for another."""
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ModelError(f"native code takes float32 in order, but there is {values.dtype}")
    return _place(values)


def _place(values: Any) -> tuple[int, int]:
    """Return where an array in order is, and its elements. `ctypes.data` takes ten times as long to
    read."""
    if values.flags.writeable and values.size:
        return addressof(c_char.from_buffer(values)), values.size
    return values.ctypes.data, values.size


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
