"""Draws on a device, for all rows at once: the noise of `core.verify.noise` and the order of
`core.draft.candidates` as tensors, without a look at the host.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.verify.distribution import MASS_UNITS, Edits
from slipstream.core.verify.draws import NO_TOKEN, is_plain_softmax
from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, signed
from slipstream.models.cuda.graphs import send
from slipstream.models.kv.batch import Draw

_LOW = 2**32 - 1


def perturbed(
    logits: Tensor, temperatures: Tensor, keys: Tensor, ids: Tensor, *, sharpness: float = 1.0
) -> Tensor:
    """Scores [R, n] whose best is each row's draw: `logits` [R, n] fp32 themselves where the
    temperature [R] is 0, else divided by it, times `sharpness`, with the noise of the row's `keys`
    [R, 2] for `ids` [n] added."""
    heat = temperatures.unsqueeze(1)
    relative = (logits - logits.amax(-1, keepdim=True)) / torch.where(heat == 0, 1.0, heat)
    warm = torch.where(heat == 1, logits, relative)
    return torch.where(heat == 0, logits, gumbel_rows(keys, ids).add_(warm, alpha=sharpness))


@torch.library.custom_op("slipstream::draw", mutates_args=(), device_types="cpu")
def draw(logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    """Return each row's token [R] int64; `NO_TOKEN` where `verify` would raise `ModelError`.

    `logits` [R, V], `temperatures` [R] fp32 with 0 for greedy, `keys` [R, 2] int32. A GPU's is in
    `draw_kernels.py`.
    """
    logits = logits.float()
    best = logits.amax(-1)
    ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    tokens = perturbed(logits, temperatures, keys, ids).argmax(-1)
    return torch.where(best.isfinite(), tokens, NO_TOKEN)


@draw.register_fake
def _(logits: Tensor, temperatures: Tensor, keys: Tensor) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.int64)


@torch.library.custom_op("slipstream::edit", mutates_args=(), device_types="cpu")
def edit(logits: Tensor, ranges: Tensor, edits: Tensor, places: Tensor, masks: Tensor) -> Tensor:
    """Return the logits [R, V] fp32 with the changes of `core.verify.distribution.Edits`, -inf for
    tokens that a mask does not allow.

    `ranges` [R, 4] int32 are two ranges of each row among the `edits` [n, 4] int32, by their first
    and the one behind their last; the second range counts where both change a token. `places` [R]
    int32 are the rows' masks among the `masks` [m, V / 8] uint8.
    """
    size, index = logits.shape[1], torch.arange(len(edits), device=edits.device)
    biases, penalties, added = edits[:, 1:].contiguous().view(torch.float32).T
    out = torch.nn.functional.pad(logits.float(), (0, 1))  # a column for what is in no range
    own = logits.float()[:, edits[:, 0].long()] + biases
    own = torch.where(own < 0, own * penalties, own / penalties) + added
    for start, stop in ranges.T.reshape(2, 2, -1, 1):
        is_in = (start <= index) & (index < stop)
        out = out.scatter(1, torch.where(is_in, edits[:, 0], size).long(), own)
    ids = torch.arange(size, device=edits.device)
    is_allowed = masks[places.long()][:, ids >> 3] >> (ids & 7) & 1
    return out[:, :-1].masked_fill(is_allowed == 0, -torch.inf)


@torch.library.custom_op("slipstream::truncate", mutates_args=(), device_types="cpu")
def truncate(logits: Tensor, temperatures: Tensor, nums: Tensor, limits: Tensor) -> Tensor:
    """Return the scores [R, V] fp32 of `core.verify.distribution.SamplingDistribution`, -inf for
    tokens that are left out; a row without a distribution stays without one.

    `logits` [R, V], `temperatures` [R] fp32 with 0 for greedy, which leaves none out, `nums` [R]
    int32 top-k, `limits` [R, 2] float64 top-p and the logarithm of min-p.
    """
    top, heat = logits.float().amax(-1, keepdim=True), temperatures[:, None]
    is_plain = (heat == 0) | (heat == 1)
    scores = torch.where(is_plain, logits.float(), (logits - top) / torch.where(is_plain, 1, heat))
    best = torch.where(heat == 1, top, 0.0)
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    is_in = torch.arange(logits.shape[1], device=logits.device) < nums[:, None]
    units = ((values - best).double().exp().float() * MASS_UNITS).long() * is_in
    sums, top_p = units.cumsum(-1), limits[:, :1]
    is_in &= (sums - units < top_p * sums[:, -1:]) | (top_p == 1)
    is_in &= values >= (best + limits[:, 1:]).float()
    is_in |= (heat == 0) | ~top.isfinite()
    return scores.masked_fill(~is_in.gather(-1, ids.argsort(-1)), -torch.inf)


@edit.register_fake
@truncate.register_fake
def _(logits: Tensor, *_: Tensor) -> Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


def pack_draws(draws: Sequence[Draw], size: int, *, are_plain: bool) -> NDArray[np.int32]:
    """Return the numbers of draws, padded to `size` ones: `draw_packed` reads them; the last
    `size` are the draws' indices."""
    packed, num = np.zeros(14 * size, np.int32), len(draws)
    samplings = [draw.sampling for draw in draws]
    heats = packed[8 * size : 8 * size + num].view(np.float32)
    heats[:] = [own.temperature for own in samplings]
    packed[10 * size : 10 * size + 2 * num] = [key for draw in draws for key in draw.keys]
    packed[13 * size : 13 * size + num] = [draw.index for draw in draws]
    if not are_plain:
        limits = [(own.top_p, math.log(own.min_p) if own.min_p else -math.inf) for own in samplings]
        packed[: 4 * num].view(np.float64).reshape(num, 2)[:] = limits
        packed[4 * size : 4 * (size + num)].reshape(num, 4)[:] = _ranges(draws)
        most = 2**31 - 1
        packed[9 * size : 9 * size + num] = [min(own.top_k or most, most) for own in samplings]
        has_mask = np.array([draw.mask is not None for draw in draws])
        packed[12 * size : 12 * size + num] = has_mask.cumsum() * has_mask
    return packed


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
    size = len(logits)
    heat = packed[8 * size : 9 * size].view(torch.float32)
    if tables is not None:
        logits = scores_of(logits, packed, tables)
        heat = heat.sign()  # scores are over the temperature already
    tokens: Tensor = draw(logits, heat, packed[10 * size : 12 * size].view(size, 2))
    return tokens


def scores_of(logits: Tensor, packed: Tensor, tables: DrawTables) -> Tensor:
    """Return the scores [R, V] fp32 of each row's distribution, -inf outside its support."""
    size = len(logits)
    ranges, places = packed[4 * size : 8 * size].view(size, 4), packed[12 * size : 13 * size]
    logits = edit(logits, ranges, tables.edits, places, tables.masks)
    heat, limits = packed[8 * size : 9 * size].view(torch.float32), packed[: 4 * size]
    limits = limits.view(torch.float64).view(size, 2)
    scores: Tensor = truncate(logits, heat, packed[9 * size : 10 * size], limits)
    return scores


def gumbel_rows(keys: Tensor, ids: Tensor) -> Tensor:
    """The Gumbel noise [R, n] of many positions at once, up to rounding that of
    `core.verify.noise.gumbel` for each.

    `keys` [R, 2] int32 hold the `draw_keys` of each row, `ids` [n] the tokens.
    """
    return uniform_rows(keys, ids).neg_().log1p_().neg_().log_().neg_()


def uniform_rows(keys: Tensor, ids: Tensor) -> Tensor:
    """The numbers [R, n] of `core.verify.noise.uniforms` under each row's keys, bit for bit."""
    bits = ids.to(torch.int32) ^ keys[:, :1]
    scratch = torch.empty_like(bits)
    _mix_(bits, scratch)
    bits.add_(keys[:, 1:])
    _mix_(bits, scratch)
    # In float64 the 32 bits and the half are exact; one rounding remains.
    numbers = bits.to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
    return numbers.to(torch.float32).clamp_(max=BELOW_ONE)


def _mix_(bits: Tensor, scratch: Tensor) -> None:
    """Mix the bits of each element, in place. Torch shifts signed numbers arithmetically: hence
    masks."""
    for shift, factor in ROUNDS:
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
        if factor is not None:
            bits.mul_(signed(factor))


def top_by_key(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` best of `scores` [..., V] fp32 with their ids, both [..., k]; `k` is at most V.

    Value descending, id ascending: value and reversed id make one 64-bit key, so that no two keys
    are equal. Scores that are no number come first.
    """
    size = scores.shape[-1]
    # Adding zero turns -0.0, whose bits differ, into the 0.0 that it equals.
    bits = (scores + 0.0).view(torch.int32)
    order = bits ^ (bits >> 31 & 0x7FFFFFFF)
    reversed_ids = torch.arange(size - 1, -1, -1, device=scores.device)
    keys = order.to(torch.int64).mul_(2**32).add_(reversed_ids)
    ids = size - 1 - (keys.topk(k).values & _LOW)
    return scores.gather(-1, ids), ids
