"""Draws of tokens on a GPU, in parts of a row of logits: see `draws.draw`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.core.verify.draws import NO_TOKEN
from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, signed
from slipstream.models.cuda.draws import draw
from slipstream.models.cuda.kernels import launch

_FIRST, _SECOND = (tl.constexpr(signed(factor or 0)) for _, factor in ROUNDS[:2])
_BELOW_ONE, _NO_TOKEN = tl.constexpr(BELOW_ONE), tl.constexpr(NO_TOKEN)
_PARTS = 32
"""Parts of a row, which are gone through at once."""


@triton.jit
def _mixed(bits):
    """Mixed bits, int32: see `core.verify.keyed_noise`."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * _FIRST
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * _SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit
def gumbel(ids, first_key, second_key):
    """The Gumbel noise of tokens [n] int32, under a row's keys: see `draws.gumbel_rows`."""
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
            score = tl.where(heat == 1, score, (score - top) / heat) + noise
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


@draw.register_kernel("cuda")
def draw_tokens(logits: Tensor, heats: Tensor, keys: Tensor) -> Tensor:
    """See `draw`."""
    num_rows, size = logits.shape
    span = triton.cdiv(triton.cdiv(size, 1024), _PARTS) * 1024
    tops, scores = logits.new_empty(2, num_rows, _PARTS, dtype=torch.float32)
    tokens, out = keys.new_empty(num_rows, _PARTS), keys.new_empty(num_rows, dtype=torch.int64)
    launch(_find_tops, (num_rows, _PARTS), logits, tops, size, span, BLOCK=1024)
    given = (heats, keys, tops, scores, tokens, size, span)
    launch(_find_bests, (num_rows, _PARTS), logits, *given, BLOCK=1024, PARTS=_PARTS)
    launch(_find_tokens, (num_rows,), tops, scores, tokens, out, PARTS=_PARTS)
    return out
