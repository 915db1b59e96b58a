"""Draws of tokens on a GPU, in parts of a row of logits: the operators of `draws.py`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.core.verify.distribution import MASS_UNITS
from slipstream.core.verify.draws import NO_TOKEN
from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, signed
from slipstream.models.cuda.kernels import launch

_FIRST, _SECOND = (tl.constexpr(signed(factor or 0)) for _, factor in ROUNDS[:2])
_BELOW_ONE, _NO_TOKEN = tl.constexpr(BELOW_ONE), tl.constexpr(NO_TOKEN)
_MASS_UNITS = tl.constexpr(MASS_UNITS)
NUM_PARTS = 32
"""Parts of a row, which are gone through at once."""


@triton.jit
def _mixed(bits):
    """Mixed bits, int32: see `core.verify.keyed_noise`."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * _FIRST
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * _SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit
def gumbel(ids, first_key, second_key):
    """The Gumbel noise of tokens [n] int32, under a row's keys: see `core.verify.noise.gumbel`."""
    bits = _mixed(_mixed(ids ^ first_key) + second_key).to(tl.float64)
    number = ((bits + 2147483648.5) * 2.3283064365386963e-10).to(tl.float32)
    number = tl.minimum(number, _BELOW_ONE).to(tl.float64)
    return (-tl.log(-tl.log(1.0 - number))).to(tl.float32)


@triton.jit
def _find_tops(logits, tops, size, span, BLOCK: tl.constexpr):
    """The largest logit of a part of a row, inf beside one that is no number."""
    row, part = tl.program_id(0), tl.program_id(1)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(part * span, tl.minimum((part + 1) * span, size), BLOCK):
        ids = first + tl.arange(0, BLOCK)
        given = logits + row.to(tl.int64) * size + ids
        own = tl.load(given, mask=ids < size, other=float("-inf")).to(tl.float32)
        top = tl.maximum(top, tl.where(own < float("inf"), own, float("inf")))
    tl.store(tops + row * tl.num_programs(1) + part, tl.max(top, 0))


@triton.jit
def _find_bests(
    logits, heats, keys, tops, scores, tokens, size, span,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The first of the best tokens of a part of a row, by logits and noise."""
    row, part = tl.program_id(0), tl.program_id(1)
    heat, to = tl.load(heats + row), row * PARTS + part
    top = tl.max(tl.load(tops + row * PARTS + tl.arange(0, PARTS)), 0)
    first_key, second_key = tl.load(keys + 2 * row), tl.load(keys + 2 * row + 1)
    best, token = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32)
    for first in range(part * span, tl.minimum((part + 1) * span, size), BLOCK):
        ids = first + tl.arange(0, BLOCK)
        given = logits + row.to(tl.int64) * size + ids
        score = tl.load(given, mask=ids < size, other=float("-inf")).to(tl.float32)
        if heat != 0:
            noise = gumbel(ids, first_key, second_key)
            score = tl.where(heat == 1, score, tl.div_rn(score - top, heat)) + noise
        token, best = tl.where(score > best, ids, token), tl.maximum(score, best)
    most = tl.max(best, 0)
    tl.store(scores + to, most)
    tl.store(tokens + to, tl.min(tl.where(best == most, token, 2147483647), 0))


@triton.jit
def _find_tokens(tops, scores, tokens, out, PARTS: tl.constexpr):
    """The token of a row; none where a logit, or all of them, are no numbers."""
    part = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    top, score = tl.max(tl.load(tops + part), 0), tl.load(scores + part)
    token = tl.min(tl.where(score == tl.max(score, 0), tl.load(tokens + part), 2147483647), 0)
    is_there = (top > float("-inf")) & (top < float("inf"))
    tl.store(out + tl.program_id(0), tl.where(is_there, token, _NO_TOKEN).to(tl.int64))


@triton.jit
def _is_allowed(masks, row, num_bytes, ids, mask):
    """Return whether tokens have a bit in a row of `masks`."""
    bits = tl.load(masks + row.to(tl.int64) * num_bytes + (ids >> 3), mask=mask, other=0)
    return ((bits.to(tl.int32) >> (ids & 7)) & 1) != 0


@triton.jit
def _mask_out(logits, masks, places, scores, size, num_bytes, BLOCK: tl.constexpr):
    """The logits of a block of a row, -inf where its mask has no bit."""
    row, ids = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, mask = row.to(tl.int64) * size + ids, ids < size
    own = tl.load(logits + place, mask=mask, other=0.0).to(tl.float32)
    is_in = _is_allowed(masks, tl.load(places + row), num_bytes, ids, mask)
    tl.store(scores + place, tl.where(is_in, own, float("-inf")), mask=mask)


@triton.jit
def _edit(
    logits, masks, places, scores, ranges, edits, size, num_bytes,
    FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the edits of a range of a row, in turn with other programs, where its mask has bits."""
    row, step = tl.program_id(0), tl.num_programs(1) * BLOCK
    start, stop = tl.load(ranges + 4 * row + FIRST), tl.load(ranges + 4 * row + FIRST + 1)
    for first in range(start + tl.program_id(1) * BLOCK, stop, step):
        own = first + tl.arange(0, BLOCK)
        mask = own < stop
        ids = tl.load(edits + 4 * own, mask=mask, other=0)
        bias = tl.load(edits + 4 * own + 1, mask=mask, other=0).to(tl.float32, bitcast=True)
        penalty = tl.load(edits + 4 * own + 2, mask=mask, other=1).to(tl.float32, bitcast=True)
        added = tl.load(edits + 4 * own + 3, mask=mask, other=0).to(tl.float32, bitcast=True)
        place = row.to(tl.int64) * size + ids
        logit = tl.load(logits + place, mask=mask, other=0.0).to(tl.float32) + bias
        logit = tl.where(logit < 0, logit * penalty, tl.div_rn(logit, penalty)) + added
        is_in = _is_allowed(masks, tl.load(places + row), num_bytes, ids, mask)
        tl.store(scores + place, logit, mask=mask & is_in)


@triton.jit
def _find_scores(
    logits, heats, limits, tops, scores, masses, size, span, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """The scores of a part of a row: logits over the temperature; where top-p needs them, masses
    relative to that of the best token, too."""
    row, part = tl.program_id(0), tl.program_id(1)
    heat, top_p = tl.load(heats + row), tl.load(limits + 2 * row)
    top = tl.max(tl.load(tops + row * PARTS + tl.arange(0, PARTS)), 0)
    is_heated = (heat != 0) & (heat != 1)
    for first in range(part * span, tl.minimum((part + 1) * span, size), BLOCK):
        ids = first + tl.arange(0, BLOCK)
        place = row.to(tl.int64) * size + ids
        own = tl.load(logits + place, mask=ids < size, other=float("-inf")).to(tl.float32)
        below = own - top
        hot = tl.div_rn(below, tl.where(is_heated, heat, 1.0))
        tl.store(scores + place, tl.where(is_heated, hot, own), mask=ids < size)
        if (heat != 0) & (top_p < 1):
            mass = tl.exp(tl.where(is_heated, hot, below).to(tl.float64)).to(tl.float32)
            tl.store(masses + place, mass, mask=ids < size)


@triton.jit
def _measured(masses, ids, is_in, COUNTS: tl.constexpr):
    """Numbers int64 of tokens: 1, or a mass in whole units; 0 where a token is not in."""
    if COUNTS:
        return is_in.to(tl.int64)
    return (tl.load(masses + ids, mask=is_in, other=0.0) * _MASS_UNITS).to(tl.int64)


@triton.jit
def _between(low, high):
    """A number above `low` and up to `high`, in the middle of those that there are in float32."""
    first, last = low.to(tl.int32, bitcast=True), high.to(tl.int32, bitcast=True)
    first, last = first ^ ((first >> 31) & 0x7FFFFFFF), last ^ ((last >> 31) & 0x7FFFFFFF)
    middle = ((first.to(tl.int64) + last + 1) >> 1).to(tl.int32)
    return (middle ^ ((middle >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _cut(scores, masses, size, high, limit, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """The score and the id of the last of the first tokens, by score and then by id, whose number
    or mass reaches a limit; `high` is the best score. Sums of whole numbers are exact."""
    low, above = tl.full([], float("-inf"), tl.float32), tl.full([], 0, tl.int64)
    while low < high:  # tokens above `high` are too few, those from `low` on are enough
        middle, sums = _between(low, high), tl.zeros([BLOCK], tl.int64)
        least = tl.full([BLOCK], float("inf"), tl.float32)
        most = tl.full([BLOCK], float("-inf"), tl.float32)
        for first in range(0, size, BLOCK):
            ids = first + tl.arange(0, BLOCK)
            score = tl.load(scores + ids, mask=ids < size, other=float("-inf"))
            is_in = score >= middle
            sums += _measured(masses, ids, is_in, COUNTS)
            least = tl.minimum(least, tl.where(is_in, score, float("inf")))
            most = tl.maximum(most, tl.where(is_in, float("-inf"), score))
        total = tl.sum(sums, 0)
        if total >= limit:
            low = tl.min(least, 0)
        else:
            high, above = tl.max(most, 0), total
    last = tl.full([], 0, tl.int32)
    for first in range(0, size, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        score = tl.load(scores + ids, mask=ids < size, other=float("inf"))
        is_tied = score == high
        if tl.max(is_tied.to(tl.int32), 0) > 0:
            own = _measured(masses, ids, is_tied, COUNTS)
            is_in = is_tied & (above + tl.cumsum(own, 0) - own < limit)
            last = tl.maximum(last, tl.max(tl.where(is_in, ids, 0), 0))
            above += tl.sum(own, 0)
    return high, last


@triton.jit
def _leave_out(
    heats, nums, limits, tops, scores, masses, size, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """Have a row be -inf where its tokens are left out."""
    row = tl.program_id(0)
    heat, num, top_p = tl.load(heats + row), tl.load(nums + row), tl.load(limits + 2 * row)
    top = tl.max(tl.load(tops + row * PARTS + tl.arange(0, PARTS)), 0)
    scores, masses = scores + row.to(tl.int64) * size, masses + row.to(tl.int64) * size
    if (heat != 0) & (top > float("-inf")) & (top < float("inf")):
        best = tl.where(heat == 1, top, 0.0)
        cut, last = tl.full([], float("-inf"), tl.float32), tl.full([], 0, tl.int32) + size
        if num < size:
            cut, last = _cut(scores, masses, size, best, num.to(tl.int64), True, BLOCK)
        if top_p < 1:
            sums = tl.zeros([BLOCK], tl.int64)
            for first in range(0, size, BLOCK):
                ids = first + tl.arange(0, BLOCK)
                score = tl.load(scores + ids, mask=ids < size, other=float("-inf"))
                is_in = (ids < size) & ((score > cut) | ((score == cut) & (ids <= last)))
                sums += _measured(masses, ids, is_in, False)
            limit = tl.ceil(top_p * tl.sum(sums, 0).to(tl.float64)).to(tl.int64)
            cut, last = _cut(scores, masses, size, best, limit, False, BLOCK)
        least = (best.to(tl.float64) + tl.load(limits + 2 * row + 1)).to(tl.float32)
        for first in range(0, size, BLOCK):
            ids = first + tl.arange(0, BLOCK)
            score = tl.load(scores + ids, mask=ids < size, other=float("inf"))
            is_out = (score < tl.maximum(cut, least)) | ((score == cut) & (ids > last))
            tl.store(scores + ids, float("-inf"), mask=is_out)


def draw_tokens(logits: Tensor, heats: Tensor, keys: Tensor) -> Tensor:
    """Return each row's token [R] int64; `NO_TOKEN` where `verify` would raise `ModelError`.

    `logits` [R, V], temperatures `heats` [R] fp32 with 0 for greedy, `keys` [R, 2] int32.
    """
    num_rows, size = logits.shape
    span, tops = _tops(logits)
    scores = torch.empty_like(tops)
    tokens, out = keys.new_empty(num_rows, NUM_PARTS), keys.new_empty(num_rows, dtype=torch.int64)
    given = (heats, keys, tops, scores, tokens, size, span)
    launch(_find_bests, (num_rows, NUM_PARTS), logits, *given, BLOCK=1024, PARTS=NUM_PARTS)
    launch(_find_tokens, (num_rows,), tops, scores, tokens, out, PARTS=NUM_PARTS)
    return out


def edit_rows(
    logits: Tensor, ranges: Tensor, edits: Tensor, places: Tensor, masks: Tensor
) -> Tensor:
    """Return the logits [R, V] fp32 with the changes of `core.verify.distribution.Edits`, -inf for
    tokens that a mask does not allow. Products are rounded before something is added.

    `ranges` [R, 4] int32 are two ranges of each row among the `edits` [n, 4] int32, by their first
    and the one behind their last; the second range counts where both change a token. `places` [R]
    int32 are the rows' masks among the `masks` [m, V / 8] uint8.
    """
    (num_rows, size), num_bytes = logits.shape, masks.shape[1]
    scores = torch.empty_like(logits, dtype=torch.float32)
    grid, given = (num_rows, triton.cdiv(size, 1024)), (logits, masks, places, scores)
    launch(_mask_out, grid, *given, size, num_bytes, BLOCK=1024)
    for first in (0, 2):
        own = (*given, ranges, edits, size, num_bytes)
        launch(_edit, (num_rows, 8), *own, FIRST=first, BLOCK=256, enable_fp_fusion=False)
    return scores


def truncate_rows(logits: Tensor, heats: Tensor, nums: Tensor, limits: Tensor) -> Tensor:
    """Return the scores [R, V] fp32 of `core.verify.distribution.SamplingDistribution`, -inf for
    tokens that are left out; a row without a distribution stays without one.

    `logits` [R, V], temperatures `heats` [R] fp32 with 0 for greedy, which leaves none out, `nums`
    [R] int32 top-k, `limits` [R, 2] float64 top-p and the logarithm of min-p. A row's cuts are
    found by halves, by one program that reads it each time.
    """
    num_rows, size = logits.shape
    span, tops = _tops(logits)
    scores, masses = (torch.empty_like(logits, dtype=torch.float32) for _ in range(2))
    given = (heats, limits, tops, scores, masses, size, span)
    launch(_find_scores, (num_rows, NUM_PARTS), logits, *given, BLOCK=1024, PARTS=NUM_PARTS)
    own = (nums, limits, tops, scores, masses, size)
    launch(_leave_out, (num_rows,), heats, *own, BLOCK=4096, PARTS=NUM_PARTS, num_warps=16)
    return scores


def _tops(logits: Tensor) -> tuple[int, Tensor]:
    """Return the length of the parts of a row, and the largest logit of each part [R, parts]."""
    num_rows, size = logits.shape
    span = triton.cdiv(triton.cdiv(size, 1024), NUM_PARTS) * 1024
    tops = logits.new_empty(num_rows, NUM_PARTS, dtype=torch.float32)
    launch(_find_tops, (num_rows, NUM_PARTS), logits, tops, size, span, BLOCK=1024)
    return span, tops


torch.library.impl("slipstream::draw", "cuda", draw_tokens)
torch.library.impl("slipstream::edit", "cuda", edit_rows)
torch.library.impl("slipstream::truncate", "cuda", truncate_rows)
