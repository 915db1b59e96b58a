"""Draws on a device, for all rows at once: the noise of `core.verify.noise` as tensors, without a
look at the host. A GPU's operators are in `draw_kernels.py`.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.verify.distribution import Edits
from slipstream.core.verify.draws import is_plain_softmax
from slipstream.models.cuda.graphs import send
from slipstream.models.kv.batch import Draw

torch.library.define("slipstream::draw", "(Tensor logits, Tensor heats, Tensor keys) -> Tensor")
torch.library.define(
    "slipstream::edit",
    "(Tensor logits, Tensor ranges, Tensor edits, Tensor places, Tensor masks) -> Tensor",
)
torch.library.define(
    "slipstream::truncate", "(Tensor logits, Tensor heats, Tensor nums, Tensor limits) -> Tensor"
)

_WIDTHS = (4, 4, 1, 1, 2, 1, 1)
"""Numbers of a draw, int32: top-p and the logarithm of min-p, float64; two ranges of edits; its
temperature, float32; top-k; its keys; the place of its mask; its index."""
Packed = TypeVar("Packed", NDArray[np.int32], Tensor)


def pack_draws(draws: Sequence[Draw], size: int, *, are_plain: bool) -> NDArray[np.int32]:
    """Return the numbers of draws, padded to `size` ones, as `parts_of` takes them apart."""
    packed, num = np.zeros(sum(_WIDTHS) * size, np.int32), len(draws)
    limits, ranges, heats, nums, keys, places, indices = (own[:num] for own in parts_of(packed))
    samplings = [draw.sampling for draw in draws]
    heats.view(np.float32)[:, 0] = [own.temperature for own in samplings]
    keys[:] = [draw.keys for draw in draws]
    indices[:, 0] = [draw.index for draw in draws]
    if not are_plain:
        cuts = [(own.top_p, math.log(own.min_p) if own.min_p else -math.inf) for own in samplings]
        limits.view(np.float64)[:] = cuts
        ranges[:] = _ranges(draws)
        most = 2**31 - 1
        nums[:, 0] = [min(own.top_k or most, most) for own in samplings]
        has_mask = np.array([draw.mask is not None for draw in draws])
        places[:, 0] = has_mask.cumsum() * has_mask
    return packed


def parts_of(packed: Packed) -> list[Packed]:
    """Return the numbers [size, width] of draws by `_WIDTHS`, in the memory of `packed`."""
    size = len(packed) // sum(_WIDTHS)
    ends = [size * end for end in accumulate(_WIDTHS, initial=0)]
    return [packed[start:stop].reshape(size, -1) for start, stop in pairwise(ends)]


def _tables(draws: Sequence[Draw]) -> list[Edits]:
    """Return each table of edits once, in the order of the draws."""
    return list({id(edits): edits for draw in draws for edits in draw.edits}.values())


def _ranges(draws: Sequence[Draw]) -> list[list[int]]:
    """Return each draw's ranges of the edits that all have."""
    tables = _tables(draws)
    ends = list(accumulate(map(len, tables), initial=0))
    ranges = {id(edits): ends[place : place + 2] for place, edits in enumerate(tables)}
    own = ([end for edits in draw.edits for end in ranges[id(edits)]] for draw in draws)
    return [[*both, 0, 0, 0, 0][:4] for both in own]


class DrawTables:
    """Memory on a device for what changes the logits of up to `num_rows` rows: their edits, and
    their masks, the first of which allows all tokens."""

    def __init__(self, num_rows: int, vocab_size: int, device: str) -> None:
        self.num_rows = num_rows
        self.edits = torch.zeros(2 * vocab_size, 4, dtype=torch.int32, device=device)
        shape = (1 + num_rows, -(-vocab_size // 8))
        self.masks = torch.full(shape, 255, dtype=torch.uint8, device=device)
        self.num_bytes = self.edits.nbytes + self.masks.nbytes

    def num_fitting(self, draws: Sequence[Draw]) -> int:
        """Return how many of the draws to do at once."""
        has_room = sum(map(len, _tables(draws))) <= len(self.edits)
        return min(len(draws) if has_room else len(draws) // 2, self.num_rows)

    def send(self, draws: Sequence[Draw]) -> None:
        """Bring edits and masks to the device, without waiting."""
        if tables := _tables(draws):
            edits = torch.from_numpy(np.concatenate(tables))
            send(edits, self.edits[: len(edits)])
        if masks := [draw.mask for draw in draws if draw.mask is not None]:
            own = torch.zeros(len(masks), self.masks.shape[1], dtype=torch.uint8)
            for row, mask in zip(own, masks, strict=True):
                row[: len(mask)] = torch.from_numpy(mask)
            send(own, self.masks[1 : 1 + len(own)])


def is_plain(draw: Draw) -> bool:
    """Return whether nothing but the temperature stands between logits and distribution."""
    return not draw.edits and draw.mask is None and is_plain_softmax(draw.sampling)


def draw_packed(logits: Tensor, packed: Tensor, tables: DrawTables | None = None) -> Tensor:
    """Return each row's token [R] as `draw` does; `packed` are the `pack_draws` of as many rows as
    `logits` [R, V] have, and `tables` have their edits and masks; without them all are plain."""
    _, _, heats, _, keys, _, _ = parts_of(packed)
    heat = heats.flatten().view(torch.float32)
    if tables is not None:
        logits = scores_of(logits, packed, tables)
        heat = heat.sign()  # scores are over the temperature already
    tokens: Tensor = torch.ops.slipstream.draw(logits, heat, keys)
    return tokens


def scores_of(logits: Tensor, packed: Tensor, tables: DrawTables) -> Tensor:
    """Return the scores [R, V] fp32 of each row's distribution, -inf outside its support."""
    limits, ranges, heats, nums, _, places, _ = parts_of(packed)
    operators = torch.ops.slipstream
    logits = operators.edit(logits, ranges, tables.edits, places.flatten(), tables.masks)
    heat, limits = heats.flatten().view(torch.float32), limits.view(torch.float64)
    scores: Tensor = operators.truncate(logits, heat, nums.flatten(), limits)
    return scores
