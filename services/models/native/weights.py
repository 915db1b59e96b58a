"""Weights as the native forward takes them, of modules and of tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from slipstream.models.store.gguf_file import TYPES

BFLOAT16, FLOAT32, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K = range(7)
"""Element types: see `Kind` in `src/model.h`."""
KINDS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q6_K": Q6_K}
"""Those in blocks, by the names of GGUF files."""
_BLOCKS = {KINDS[at.name]: at for at in TYPES.values() if at.name in KINDS}
_TILE, _LARGEST = 16, 127


@dataclass(frozen=True, slots=True)
class Weights:
    """One matrix [outputs, inputs] in an element type, or [outputs, bytes] in blocks; `bias`
    [outputs] is float32."""

    kind: int
    matrix: Tensor
    bias: Tensor | None = None

    @property
    def num_inputs(self) -> int:
        """Elements of a row."""
        size, block = self.matrix.shape[1], _BLOCKS.get(self.kind)
        return size if block is None else size // block.num_bytes * block.elements


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """An attention or an MLP behind its norm: see `Block` in `src/model.h`. Norms are float32."""

    norm: Tensor
    into: Weights
    out: Weights
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    values: Weights | None = None


def plain(matrix: Tensor) -> Weights:
    """A matrix in bfloat16 or float32 as it is."""
    return Weights(BFLOAT16 if matrix.dtype == torch.bfloat16 else FLOAT32, matrix)


def exact(matrix: Tensor, bias: Tensor | None) -> Weights:
    """Weights in bfloat16 where that loses nothing: half the memory to read for every token."""
    narrow = matrix.to(torch.bfloat16)
    bias = None if bias is None else bias.float().contiguous()
    if matrix.dtype == torch.bfloat16 or torch.equal(narrow.float(), matrix):
        return Weights(BFLOAT16, narrow.contiguous(), bias)
    return Weights(FLOAT32, matrix.contiguous(), bias)


def eight_bits(matrix: Tensor, bias: Tensor | None) -> Weights:
    """Weights in blocks of 32 8-bit numbers with a scale (Q8_0), the nearest to what they are;
    exactly where rows are no whole blocks."""
    elements = _BLOCKS[Q8_0].elements
    if matrix.shape[1] % elements:
        return exact(matrix, bias)
    blocks = matrix.float().unflatten(1, (-1, elements))
    scales = blocks.abs().amax(2, keepdim=True) / _LARGEST
    codes = torch.where(scales > 0, blocks / scales, 0.0).round().to(torch.int8)
    rows = torch.cat([scales.half().view(torch.int8), codes], 2).view(torch.uint8)
    return Weights(Q8_0, rows.flatten(1), None if bias is None else bias.float().contiguous())


class Scratch:
    """Memory that matrices are put together in, the same for every layer: they are packed from it
    before the next ones are. Memory that is taken anew takes longer than what is put there."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def like(self, role: str, rows: int, part: Tensor) -> Tensor:
        """Return memory for so many rows of the form and type of those of `part`."""
        size = torch.Size((rows, *part.shape[1:]))
        key = (role, size, part.dtype)
        if key not in self._kept:
            self._kept[key] = part.new_empty(size)
        return self._kept[key]


def in_turn(first: Tensor, second: Tensor, scratch: Scratch | None = None) -> Tensor:
    """Rows of two matrices, a tile of each in turn; in `scratch` if there is one."""
    padding = -len(first) % _TILE
    parts = [F.pad(at, (0, 0, 0, padding)) if padding else at for at in (first, second)]
    tiles = [part.unflatten(0, (-1, _TILE)) for part in parts]
    if scratch is None:
        return torch.stack(tiles, 1).flatten(0, 2)
    goal = scratch.like("in turn", 2 * len(parts[0]), first)
    torch.stack(tiles, 1, out=goal.view(-1, 2, *tiles[0].shape[1:]))
    return goal


def bias_in_turn(bias: Tensor | None) -> Tensor | None:
    """A bias of two matrices of like size, one after the other, in the order of their `in_turn`."""
    if bias is None:
        return None
    first, second = bias[:, None].chunk(2)
    return in_turn(first, second)[:, 0].contiguous()
