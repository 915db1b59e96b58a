"""Weights as the native forward takes them: arrays by kind."""

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.models import dtypes
from slipstream.models.dtypes import Array
from slipstream.models.format.gguf_file import TYPES
from slipstream.models.native.library import Matrix, call, team
from slipstream.models.threads import num_threads

BFLOAT16, FLOAT32, NARROW_FLOAT32, FLOAT16 = range(4)
"""Plain element types: see `Kind` in `src/model.h`."""
_NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
KINDS = {
    name: number for number, name in enumerate((*_NAMES, "IQ4_NL", "IQ4_XS", "MXFP4"), FLOAT16 + 1)
}
"""Types in blocks, by the names of GGUF files."""
Q4_1, Q8_0 = KINDS["Q4_1"], KINDS["Q8_0"]
_BLOCKS = {KINDS[kind.name]: kind for kind in TYPES.values() if kind.name in KINDS}


@dataclass(frozen=True, slots=True)
class Weights:
    """One matrix [outputs, inputs] in an element type, or [outputs, bytes] in blocks; `bias`
    [outputs] is float32."""

    kind: int
    matrix: Array
    bias: Array | None = None

    @property
    def num_inputs(self) -> int:
        """Elements of a row."""
        size, block = self.matrix.shape[1], _BLOCKS.get(self.kind)
        return int(size if block is None else size // block.num_bytes * block.elements)

    def in_order(self) -> "Weights":
        """Return these weights with rows one after the other; a copy only where they are not."""
        bias = None if self.bias is None else as_float32(self.bias)
        return Weights(self.kind, np.ascontiguousarray(self.matrix), bias)

    def as_matrix(self) -> Matrix:
        """Return what the library takes of weights in order, which have to be kept meanwhile."""
        place: tuple[int | None, int] = (None, 0)
        if self.bias is not None:
            place = (self.bias.ctypes.data, len(self.bias))
        size = (len(self.matrix), self.num_inputs)
        return Matrix(self.kind, *size, self.matrix.ctypes.data, self.matrix.nbytes, *place)

    def dense(self, dtype: np.dtype[Any]) -> Array:
        """Return the weights one by one, without the bias."""
        own, is_narrow = self.in_order(), dtype == dtypes.BFLOAT16
        size = (len(own.matrix), own.num_inputs)
        out = np.empty(size, dtypes.BFLOAT16 if is_narrow else dtypes.FLOAT32)
        threads, matrix = team(num_threads()), byref(own.as_matrix())
        call("dequantise", threads, matrix, is_narrow, out.ctypes.data, out.nbytes)
        return out.astype(dtype, copy=False)

    def has_all_of(self, rows: "Weights") -> bool:
        """Return whether these weights, once packed, are those that `rows` stand for, where both
        are one tensor: they are not where plain weights have been rounded to blocks."""
        return self.kind == rows.kind or self.kind <= FLOAT16


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """An attention or an MLP and its norms: see `Block` in `src/model.h`. Norms are float32."""

    norm: Array | None
    into: Sequence[Weights]
    out: Weights
    query_norm: Array | None = None
    key_norm: Array | None = None
    norm_after: Array | None = None


def plain(matrix: Array) -> Weights:
    """A matrix in bfloat16 or float32 as it is."""
    return Weights(BFLOAT16 if matrix.dtype == dtypes.BFLOAT16 else FLOAT32, matrix)


def of_type(matrix: Array, dtype: np.dtype[Any]) -> Weights:
    """Weights for products in a type: those in bfloat16 are for products of bfloat16 with
    bfloat16 there, else for products in float32."""
    if matrix.dtype == dtype == dtypes.BFLOAT16:
        return plain(np.ascontiguousarray(matrix))
    return exact(matrix)


def exact(matrix: Array, bias: Array | None = None) -> Weights:
    """Weights for products in float32, kept in bfloat16 where that loses nothing: half the memory
    to read for every token."""
    bias = None if bias is None else as_float32(bias)
    if matrix.dtype == dtypes.BFLOAT16:
        return Weights(NARROW_FLOAT32, np.ascontiguousarray(matrix), bias)
    with np.errstate(over="ignore"):
        narrow = matrix.astype(dtypes.BFLOAT16)
    if np.array_equal(narrow.astype(dtypes.FLOAT32), matrix):
        return Weights(NARROW_FLOAT32, narrow, bias)
    return Weights(FLOAT32, np.ascontiguousarray(matrix), bias)


def eight_bits(matrix: Array, bias: Array | None = None) -> Weights:
    """Weights in blocks of 32 8-bit numbers with a scale (Q8_0), the nearest to what they are;
    exactly where rows are no whole blocks."""
    block, values = _BLOCKS[Q8_0], as_float32(matrix)
    if matrix.shape[1] % block.elements:
        return exact(matrix, bias)
    rows = np.empty((len(matrix), matrix.shape[1] // block.elements * block.num_bytes), np.uint8)
    call("quantise", values.ctypes.data, values.size, rows.ctypes.data, rows.nbytes)
    return Weights(Q8_0, rows, None if bias is None else as_float32(bias))


def as_float32(values: Array) -> Array:
    """Return values in float32, side by side in memory; a copy only where they are not."""
    return np.ascontiguousarray(values, np.float32)
