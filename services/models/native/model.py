"""A model in native code: its weights, its buffers, its threads; see `src/api.cpp`."""

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref, c_float, c_void_p
from typing import Any
from weakref import finalize

import numpy as np

from slipstream.core.errors import ModelError
from slipstream.models.dtypes import Array
from slipstream.models.kv.pool import KvPool
from slipstream.models.native.library import (
    Batch,
    Cache,
    Matrix,
    NativeShape,
    kernels,
    library,
    team,
)
from slipstream.models.native.weights import BlockWeights, Weights, as_float32
from slipstream.models.threads import num_threads

_LAST = -1
_INTO, _OUT = 0, 1
_NO_MEMORY = "there is no memory for the native weights"
_MISFIT = -2


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
        handle: int | None = self._library.slipstream_model(
            byref(shape),
            self.kernels.encode(),
            team(num_threads()),
            byref(embedding.as_matrix()),
        )
        if handle is None:
            raise MemoryError(_NO_MEMORY)
        self._handle = handle
        self._free = finalize(self, self._library.slipstream_free_model, handle)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        packed: int = self._library.slipstream_weight_bytes(self._handle)
        return packed + (0 if self._embedding is None else self._embedding.matrix.nbytes)

    def set_rotary(self, cos: Array, sin: Array, number: int = 0) -> None:
        """Rotary factors [positions, rotary_dim / 2], float32, of all positions."""
        cos, sin = as_float32(cos), as_float32(sin)
        self._do("set_rotary", number, *cos.shape, _address(cos), _address(sin))

    def set_layer(
        self, index: int, blocks: Iterable[BlockWeights], *, window: int = 0, rotary: int = 0
    ) -> None:
        """Copy a layer's blocks: self-attention, attentions over others' keys, MLP. The first sees
        the last `window` positions, 0 is all; `rotary` is the number of its factors, or -1."""
        self._do("set_layer", index, window, rotary)
        for at, block in enumerate(blocks):
            self._set_matrices(index, at, _INTO, block.into)
            self._set_matrices(index, at, _OUT, [block.out])
            norms = (block.norm, block.query_norm, block.key_norm, block.norm_after)
            for place, norm in enumerate(norms):
                if norm is not None:
                    self._do("set_norm", index, at, place, _address(norm), len(norm))

    def set_head(self, norm: Array, head: Weights, *, is_tied: bool = False) -> None:
        """Copy the last norm's weight [d], float32, and the head. One that `is_tied` has the rows
        of the embedding, which is held no longer where the head gives them exactly."""
        self._num_outputs = len(head.matrix)
        self._set_matrices(_LAST, 0, _INTO, [head])
        self._do("set_norm", _LAST, 0, 0, _address(norm), len(norm))
        embedding = self._embedding
        if is_tied and embedding and head.has_all_of(embedding) and self._do("tie"):
            self._embedding = None

    def forward(self, pool: KvPool, batch: Batch) -> Array:
        """Hidden states [kept, d], float32, behind the last norm; writes keys and values."""
        hidden = np.empty((batch.kept, self._shape.hidden), np.float32)
        pointers = (c_void_p * len(pool.addresses))(*pool.addresses)
        cache = Cache(ctypes.cast(pointers, c_void_p), pool.scratch.stop)
        self._do("forward", byref(cache), byref(batch), _address(hidden))
        return hidden

    def logits(self, hidden: Array) -> Array:
        """Outputs of the head [rows, outputs], float32, for hidden states [rows, d]."""
        hidden = as_float32(hidden)
        out = np.empty((len(hidden), self._num_outputs), np.float32)
        self._do("logits", _address(hidden), len(hidden), _address(out))
        return out

    def contenders(
        self, logits: Array, temperature: float, keys: tuple[int, int]
    ) -> tuple[Array, float] | None:
        """See `core.verify.draws.FindContenders`."""
        tokens = np.empty(len(logits), np.int32)
        best = c_float()
        addresses = (byref(best), _address(tokens))
        count = self._library.slipstream_contenders(
            self._handle, _address(logits), len(logits), temperature, *keys, *addresses
        )
        return (tokens[:count], best.value) if count else None

    def _set_matrices(self, layer: int, block: int, place: int, parts: Sequence[Weights]) -> None:
        own = [part.in_order() for part in parts]
        matrices = (Matrix * len(own))(*(part.as_matrix() for part in own))
        self._do("set_matrices", layer, block, place, matrices, len(own))

    def _do(self, name: str, *arguments: Any) -> int:
        result: int = getattr(self._library, f"slipstream_{name}")(self._handle, *arguments)
        if result == _MISFIT:
            raise ModelError(f"native code refuses {name}: types or lengths are not the model's")
        if result < 0:
            raise MemoryError(_NO_MEMORY)
        return result


class NativeTokens:
    """The tokens of a forward, as they are put together: see `Batch` in `src/model.h`.

    tables: addresses of int64 slots; in_table: how many of them a token sees, before the slots of
    its line; others: address, address and stride of others' keys and values.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.tables: list[int] = []
        self.in_table: list[int] = []
        self.in_others: list[int] = []
        self.others: list[int] = []
        self._lines: list[int] = []
        self._line_first = [0]
        self._arrays: list[array[int]] = []

    def add_line(self, slots: Iterable[int] = ()) -> None:
        """Slots that the next token sees behind those in its table."""
        self._lines += slots
        self._line_first.append(len(self._lines))

    def batch(self, kept: int) -> Batch:
        """The arrays, the first `kept` tokens of which go through the last layer; they are there
        as long as this object."""
        lists = (self.tokens, self.positions, self.slots, self.tables, self.in_table)
        more = (self._lines, self._line_first, self.in_others, self.others)
        self._arrays = [array("q", values) for values in (*lists, *more)]
        pointers = [values.buffer_info()[0] if values else None for values in self._arrays]
        return Batch(len(self.tokens), kept, *pointers)


def _address(values: Array | None) -> int | None:
    return None if values is None else values.ctypes.data
