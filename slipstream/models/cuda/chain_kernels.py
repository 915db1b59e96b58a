"""The slot of a chain on a GPU, by two kernels: candidates, their probabilities, and whether the
chain ends there, by the policies of `core.policy.stop` and the decision model.

The same double arithmetic in the same order, so that a device stops where the host would.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.core.policy.stop import COST, DECISION, SVIP, SVIP_SLOPE
from slipstream.models.cuda.draw_kernels import NUM_PARTS, gumbel
from slipstream.models.cuda.kernels import launch
from slipstream.models.decision import EPS, MOST
from slipstream.models.glide.glide_chain import (
    AT_END,
    AT_LIMIT,
    BY_POLICY,
    GOES_ON,
    MAX_ENDS,
    ChainNumber,
    StateNumber,
    StepNumber,
)

(
    _HEAT, _THRESHOLD, _FALLBACK, _LEAST_PATH, _POLICY, _MAX_DEPTH, _LIMIT, _ASKS_SCORE,
    _NUM_POINTS, _ENDS, _POINTS,
) = map(tl.constexpr, ChainNumber)  # fmt: skip
_, _, _, _, _LAG, _FIRST_KEY, _SECOND_KEY = map(tl.constexpr, StepNumber)
_TOKEN, _LENGTH, _REASON, _PATH_PROB = map(tl.constexpr, StateNumber)
_SVIP, _DECISION, _COST = map(tl.constexpr, (SVIP, DECISION, COST))
_GOES_ON, _AT_END = tl.constexpr(GOES_ON), tl.constexpr(AT_END)
_AT_LIMIT, _BY_POLICY = tl.constexpr(AT_LIMIT), tl.constexpr(BY_POLICY)
_MAX_ENDS = tl.constexpr(MAX_ENDS)
_SHARPNESS, _SLOPE = tl.constexpr(SHARPNESS), tl.constexpr(SVIP_SLOPE)
_EPS, _MOST = tl.constexpr(EPS), tl.constexpr(MOST)


@triton.jit
def _read_parts(
    logits, vocab, steps, rules, sums, scores, columns, num_rules, size, span,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, NUM: tl.constexpr,
):  # fmt: skip
    """The best columns of a part of a row and their scores; the part's top, its mass relative to
    that, and the sum of its relative scores by mass."""
    row, part, num_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    within = tl.arange(0, BLOCK)
    column = part * span + within
    is_there = (within < span) & (column < size)
    given = logits + row.to(tl.int64) * size + column
    score = tl.load(given, mask=is_there, other=float("-inf")).to(tl.float32)
    heat = tl.load(rules + row * num_rules + _HEAT)
    if heat != 0:
        first = tl.load(steps + _FIRST_KEY * num_rows + row).to(tl.int32)
        second = tl.load(steps + _SECOND_KEY * num_rows + row).to(tl.int32)
        ids = tl.load(vocab + column, mask=is_there, other=0).to(tl.int32)
        score = score * (1.0 / heat * _SHARPNESS).to(tl.float32) + gumbel(ids, first, second)
    top = tl.max(score, 0)
    below = score - tl.where(top == float("-inf"), 0.0, top)
    mass = tl.exp(below)
    own = sums + (row * PARTS + part) * 3
    tl.store(own, top)
    tl.store(own + 1, tl.sum(mass, 0))
    tl.store(own + 2, tl.sum(tl.where(mass == 0, 0.0, mass * below), 0))
    for index in range(0, NUM):
        best = tl.max(score, 0)
        chosen = tl.min(tl.where((score == best) & is_there, column, size - 1), 0)
        tl.store(scores + (row * PARTS + part) * NUM + index, best)
        tl.store(columns + (row * PARTS + part) * NUM + index, chosen)
        score = tl.where(column == chosen, float("-inf"), score)


@triton.jit
def _decided(first, stats, out, odds, entropy, ratio, lag, heat, width, WIDTH: tl.constexpr):
    """The decision model's score, by what its first layer makes of a state."""
    unit, column = tl.arange(0, WIDTH), (heat != 0).to(tl.int32)
    is_unit = unit < width
    place = tl.where(is_unit, unit, width + column)
    made = tl.load(first + place)
    made += tl.load(stats + 4 * place) * odds + tl.load(stats + 4 * place + 1) * entropy
    made += tl.load(stats + 4 * place + 2) * ratio + tl.load(stats + 4 * place + 3) * lag
    weight = tl.load(out + column * width + unit, mask=is_unit, other=0.0)
    logit = tl.sum(tl.where(is_unit, tl.maximum(made, 0.0) * weight, 0.0), 0)
    return tl.sigmoid(logit + tl.max(tl.where(unit == width, made, float("-inf")), 0))


@triton.jit
def _acceptance(top_prob, rules):
    """The probability that a token of this confidence is kept; 0 for nan."""
    count = tl.load(rules + _NUM_POINTS)
    is_number = top_prob == top_prob
    place = tl.where(is_number, tl.minimum(tl.maximum(top_prob, 0.0), 1.0), 0.0) * (count - 1)
    below = tl.minimum(tl.floor(place), count - 2)
    point = rules + _POINTS + below.to(tl.int32)
    low, high = tl.load(point), tl.load(point + 1)
    return tl.where(is_number, low + (place - below) * (high - low), 0.0)


@triton.jit
def _stops(rules, entropy, score, path, prob):
    """True where the policy ends a path whose last token is kept with a chance."""
    policy, threshold = tl.load(rules + _POLICY), tl.load(rules + _THRESHOLD)
    bound = tl.sqrt(tl.maximum(entropy, 0.0) * _SLOPE)
    least = tl.where(policy == _DECISION, tl.load(rules + _FALLBACK), threshold)
    svip, is_scored = bound > least, score == score
    stops = (policy == _SVIP) & svip
    stops |= (policy == _DECISION) & tl.where(is_scored, score <= threshold, svip)
    stops |= (policy == _COST) & (path * prob < threshold)
    return stops | (path < tl.load(rules + _LEAST_PATH))


@triton.jit
def _go_on(rules, state, into, token, entropy, top_prob, score, num_rows):
    """The state behind a slot, which every chain that goes on keeps."""
    length, reason = tl.load(state + _LENGTH * num_rows), tl.load(state + _REASON * num_rows)
    prob = tl.where(score == score, score, _acceptance(top_prob, rules))
    path, depth = tl.load(state + _PATH_PROB * num_rows) * prob, length + 1
    stops = _stops(rules, entropy, score, path, prob) | (tl.load(rules + _MAX_DEPTH) <= depth)
    found = tl.where(stops, _BY_POLICY, _GOES_ON)
    found = tl.where(tl.load(rules + _LIMIT) <= depth, _AT_LIMIT, found)
    ends = tl.load(rules + _ENDS + tl.arange(0, _MAX_ENDS))
    found = tl.where(tl.max((ends == token).to(tl.int32), 0) > 0, _AT_END, found)
    is_alive = reason == _GOES_ON
    tl.store(into + _TOKEN * num_rows, token)
    tl.store(into + _LENGTH * num_rows, length + is_alive.to(tl.float64))
    tl.store(into + _REASON * num_rows, tl.where(is_alive, found.to(tl.float64), reason))
    tl.store(into + _PATH_PROB * num_rows, path)


@triton.jit
def _summed(sums, row, PARTS: tl.constexpr):
    """The top of a row, its mass relative to that, and its entropy, by its parts."""
    part = sums + (row * PARTS + tl.arange(0, PARTS)) * 3
    tops, mass, moment = tl.load(part), tl.load(part + 1), tl.load(part + 2)
    top = tl.max(tops, 0)
    below = tl.where(tops == float("-inf"), 0.0, tops - top)
    share = tl.where(tops == float("-inf"), 0.0, tl.exp(below))
    total = tl.sum(mass * share, 0)
    return top, total, tl.log(total) - tl.sum((moment + mass * below) * share, 0) / total


@triton.jit
def _store_best(
    scores, columns, vocab, numbers, row, top, total, num,
    PARTS: tl.constexpr, NUM: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Store a row's candidates and their probabilities; the first one, and the second's score."""
    place = tl.arange(0, SIZE)
    own, is_there = row * PARTS * NUM + place, place < PARTS * NUM
    score = tl.load(scores + own, mask=is_there, other=float("-inf"))
    column = tl.load(columns + own, mask=is_there, other=2147483647)
    token, second = tl.full([], 0, tl.int64), tl.full([], 0.0, tl.float32)
    for index in range(0, NUM):
        best = tl.max(score, 0)
        chosen = tl.min(tl.where((score == best) & is_there, column, 2147483647), 0)
        chosen = tl.where(chosen == 2147483647, 0, chosen)  # scores that are no numbers
        score = tl.where(column == chosen, float("-inf"), score)
        named = tl.load(vocab + chosen)
        tl.store(numbers + index, named.to(tl.float64), mask=index < num)
        prob = tl.exp(best - top) / total
        tl.store(numbers + num + index, prob.to(tl.float64), mask=index < num)
        token, second = tl.where(index == 0, named, token), tl.where(index == 1, best, second)
    return token, second


@triton.jit
def _read_row(
    sums, scores, columns, vocab, first, stats, out, steps, rules, state, into, numbers,
    num_rules, num, width,
    PARTS: tl.constexpr, NUM: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The numbers of a slot, and the state behind it."""
    row, num_rows = tl.program_id(0), tl.num_programs(0)
    rules, numbers = rules + row * num_rules, numbers + row * (3 + 2 * num)
    top, total, entropy = _summed(sums, row, PARTS)
    best = (scores, columns, vocab, numbers + 3, row, top, total, num)
    token, second = _store_best(*best, PARTS, NUM, SIZE)
    top_prob, score = (1.0 / total).to(tl.float64), tl.full([], float("nan"), tl.float64)
    if WIDTH > 0:
        known = -tl.log(total).to(tl.float64)
        odds = known - tl.log(tl.maximum(1.0 - tl.exp(known), _EPS))
        odds, ratio = tl.minimum(odds, _MOST).to(tl.float32), tl.minimum(top - second, _MOST)
        lag, heat = tl.load(steps + _LAG * num_rows + row), tl.load(rules + _HEAT)
        given = (odds, entropy, ratio, lag.to(tl.float32), heat, width)
        found = _decided(first + row * (width + 2), stats, out, *given, WIDTH)
        score = tl.where(tl.load(rules + _ASKS_SCORE) > 0, found.to(tl.float64), score)
    entropy = entropy.to(tl.float64)
    tl.store(numbers, entropy)
    tl.store(numbers + 1, top_prob)
    tl.store(numbers + 2, score)
    now = (token.to(tl.float64), entropy, top_prob, score, num_rows)
    _go_on(rules, state + row, into + row, *now)


def read_chains(
    logits: Tensor, first: Tensor, head: list[Tensor], chains: list[Tensor], num: int
) -> tuple[Tensor, Tensor]:
    """Return the states [4, B] behind a slot, and its numbers [B, 3 + 2 * num], both float64.

    `logits` [B, V_d] of `head`: the tokens [V_d] of their columns and, where there is a decision
    model, the last two of its weights, whose first layer has given `first` [B, width + 2]. `chains`
    are steps [7, B] (`StepNumber`), numbers [B, n] of their chains (`ChainNumber`) and states
    before (`StateNumber`). Numbers of a slot are entropy, top probability, score, `num` candidates
    and their probabilities.
    """
    (vocab, *weights), (steps, rules, state) = head, [own.contiguous() for own in chains]
    (num_rows, size), most = logits.shape, max(num, 2)
    span = triton.cdiv(size, NUM_PARTS)
    sums = logits.new_empty(num_rows, NUM_PARTS, 3, dtype=torch.float32)
    scores = sums.new_empty(num_rows, NUM_PARTS, most)
    columns = torch.empty_like(scores, dtype=torch.int32)
    into, numbers = torch.empty_like(state), rules.new_empty(num_rows, 3 + 2 * num)
    block = max(triton.next_power_of_2(span), 16)
    given = (vocab, steps, rules, sums, scores, columns, rules.shape[1], size, span)
    grid = (num_rows, NUM_PARTS)
    launch(_read_parts, grid, logits, *given, BLOCK=block, PARTS=NUM_PARTS, NUM=most)
    stats, out = weights or (sums, sums)
    width = out.shape[1] if weights else 0
    launch(
        _read_row, (num_rows,), sums, scores, columns, vocab, first.contiguous(), stats, out,
        steps, rules, state, into, numbers, rules.shape[1], num, width,
        PARTS=NUM_PARTS, NUM=most, SIZE=triton.next_power_of_2(NUM_PARTS * most),
        WIDTH=triton.next_power_of_2(width + 1) if weights else 0,
    )  # fmt: skip
    return into, numbers


torch.library.impl("slipstream::read_chain", "cuda", read_chains)
