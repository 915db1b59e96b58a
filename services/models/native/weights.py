"""Weights as the native forward takes them: arrays by kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.models import dtypes
from slipstream.models.dtypes import Array
from slipstream.models.native.library import library
from slipstream.models.store.gguf_file import TYPES

BFLOAT16, FLOAT32, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, NARROW_FLOAT32 = range(8)
"""Element types: see `Kind` in `src/model.h`."""
KINDS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q6_K": Q6_K}
"""Those in blocks, by the names of GGUF files."""
_BLOCKS = {KINDS[at.name]: at for at in TYPES.values() if at.name in KINDS}
_TILE = 16


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


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """An attention or an MLP and its norms: see `Block` in `src/model.h`. Norms are float32."""

    norm: Array | None
    into: Weights
    out: Weights
    query_norm: Array | None = None
    key_norm: Array | None = None
    values: Weights | None = None
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
    library().slipstream_quantise(values.ctypes.data, values.size, rows.ctypes.data)
    return Weights(Q8_0, rows, None if bias is None else as_float32(bias))


def as_float32(values: Array) -> Array:
    """Return values in float32, side by side in memory; a copy only where they are not."""
    return np.ascontiguousarray(values, np.float32)


class Scratch:
    """Memory that matrices are put together in, the same for every layer: they are packed from it
    before the next ones are. Memory that is taken anew takes longer than what is put there."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}

    def like(self, role: str, rows: int, part: Array) -> Array:
        """Return memory for so many rows of the form and type of those of `part`."""
        key = (role, (rows, *part.shape[1:]), part.dtype)
        if key not in self._kept:
            self._kept[key] = np.empty(key[1], part.dtype)
        return self._kept[key]


def stacked(parts: Sequence[Array], scratch: Scratch | None = None) -> Array:
    """Rows of several matrices one after the other; in `scratch` if there is one."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0])
    goal = None if scratch is None else scratch.like("stacked", sum(map(len, parts)), parts[0])
    return np.concatenate(parts, out=goal)


def in_turn(first: Array, second: Array, scratch: Scratch | None = None) -> Array:
    """Rows of two matrices, a tile of each in turn; in `scratch` if there is one."""
    padding = -len(first) % _TILE
    parts = [first, second]
    if padding:
        parts = [np.pad(at, ((0, padding), (0, 0))) for at in parts]
    shape = (-1, 2, _TILE, first.shape[1])
    rows = 2 * len(parts[0])
    goal = np.empty((rows, first.shape[1]), first.dtype)
    if scratch is not None:
        goal = scratch.like("in turn", rows, first)
    for place, part in enumerate(parts):
        goal.reshape(shape)[:, place] = part.reshape(-1, _TILE, first.shape[1])
    return goal


def bias_in_turn(bias: Array | None) -> Array | None:
    """A bias of two matrices of like size, one after the other, in the order of their `in_turn`."""
    if bias is None:
        return None
    first, second = np.split(bias[:, None], 2)
    return np.ascontiguousarray(in_turn(first, second)[:, 0])
