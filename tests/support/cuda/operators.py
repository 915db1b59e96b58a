"""A CPU's form of the operators that only a GPU has, for the simulated one and beside kernels: see
`slipstream.models.cuda.draw_kernels` and `chain_kernels`. All operators' shapes, without values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.core.draft.candidates import SHARPNESS
from slipstream.core.policy.stop import COST, DECISION, SVIP, SVIP_SLOPE
from slipstream.core.verify.distribution import MASS_UNITS
from slipstream.core.verify.draws import NO_TOKEN
from slipstream.core.verify.keyed_noise import BELOW_ONE, ROUNDS, signed
from slipstream.models.cuda import draws, layers  # noqa: F401
from slipstream.models.decision import GREEDY, LEAST, SAMPLED, slot_stats
from slipstream.models.glide.glide_chain import (
    AT_END,
    AT_LIMIT,
    BY_POLICY,
    GOES_ON,
    ChainNumber,
    StepNumber,
)
from slipstream.models.torch.arrays import new_rows


def draw(logits: Tensor, heats: Tensor, keys: Tensor) -> Tensor:
    logits = logits.float()
    best, ids = logits.amax(-1), torch.arange(logits.shape[1], dtype=torch.int32)
    tokens = _perturbed(logits, heats, keys, ids).argmax(-1)
    return torch.where(best.isfinite(), tokens, NO_TOKEN)


def edit(logits: Tensor, ranges: Tensor, edits: Tensor, places: Tensor, masks: Tensor) -> Tensor:
    size, index = logits.shape[1], torch.arange(len(edits))
    biases, penalties, added = edits[:, 1:].contiguous().view(torch.float32).T
    out = torch.nn.functional.pad(logits.float(), (0, 1))  # a column for what is in no range
    own = logits.float()[:, edits[:, 0].long()] + biases
    own = torch.where(own < 0, own * penalties, own / penalties) + added
    for start, stop in ranges.T.reshape(2, 2, -1, 1):
        is_in = (start <= index) & (index < stop)
        out = out.scatter(1, torch.where(is_in, edits[:, 0], size).long(), own)
    ids = torch.arange(size)
    is_allowed = masks[places.long()][:, ids >> 3] >> (ids & 7) & 1
    return out[:, :-1].masked_fill(is_allowed == 0, -torch.inf)


def truncate(logits: Tensor, heats: Tensor, nums: Tensor, limits: Tensor) -> Tensor:
    top, heat = logits.float().amax(-1, keepdim=True), heats[:, None]
    is_plain = (heat == 0) | (heat == 1)
    scores = torch.where(is_plain, logits.float(), (logits - top) / torch.where(is_plain, 1, heat))
    best = torch.where(heat == 1, top, 0.0)
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    is_in = torch.arange(logits.shape[1]) < nums[:, None]
    units = ((values - best).double().exp().float() * MASS_UNITS).long() * is_in
    sums, top_p = units.cumsum(-1), limits[:, :1]
    is_in &= (sums - units < top_p * sums[:, -1:]) | (top_p == 1)
    is_in &= values >= (best + limits[:, 1:]).float()
    is_in |= (heat == 0) | ~top.isfinite()
    return scores.masked_fill(~is_in.gather(-1, ids.argsort(-1)), -torch.inf)


def _perturbed(
    logits: Tensor, heats: Tensor, keys: Tensor, ids: Tensor, sharpness: float = 1.0
) -> Tensor:
    """Scores [R, n] whose best is each row's draw: sharpened, with the row's noise for `ids`."""
    heat = heats.unsqueeze(1)
    relative = (logits - logits.amax(-1, keepdim=True)) / torch.where(heat == 0, 1.0, heat)
    warm = torch.where(heat == 1, logits, relative)
    bits = _mixed(_mixed(ids.to(torch.int32) ^ keys[:, :1]) + keys[:, 1:])
    # In float64 the 32 bits and the half are exact; one rounding remains.
    numbers = ((bits.double() + (2.0**31 + 0.5)) * 2.0**-32).float().clamp(max=BELOW_ONE)
    noise = -(-(-numbers).log1p()).log()
    return torch.where(heat == 0, logits, noise.add(warm, alpha=sharpness))


def _mixed(bits: Tensor) -> Tensor:
    """Mixed bits int32, which torch shifts arithmetically: hence masks."""
    for shift, factor in ROUNDS:
        bits = bits ^ (bits >> shift & (1 << (32 - shift)) - 1)
        bits = bits if factor is None else bits * signed(factor)
    return bits


def read_chain(
    logits: Tensor, first: Tensor, head: list[Tensor], chains: list[Tensor], num: int
) -> tuple[Tensor, Tensor]:
    (vocab, *weights), (steps, rules, state) = head, chains
    heat, keys = rules[:, ChainNumber.HEAT], steps[StepNumber.FIRST_KEY :].t().to(torch.int32)
    ranked = _perturbed(logits.float(), heat.float(), keys, vocab, SHARPNESS)
    log_probs = torch.log_softmax(ranked, -1)
    entropies = -torch.linalg.vecdot(log_probs.exp(), log_probs.clamp(min=LEAST))
    tops = log_probs.topk(2).values
    columns = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :num]
    scores = torch.full_like(heat, float("nan"))
    if weights:
        known = (own.tolist() for own in (tops, entropies, steps[StepNumber.LAG]))
        stats, (of_stats, out) = torch.tensor(list(map(slot_stats, *known))), weights
        units, base = (first + stats @ of_stats.t()).split((out.shape[1], 2), -1)
        probs = torch.addmm(base, units.relu(), out.t()).sigmoid().double()
        own = torch.where(heat == 0, probs[:, GREEDY], probs[:, SAMPLED])
        scores = torch.where(rules[:, ChainNumber.ASKS_SCORE] > 0, own, scores)
    tokens, probs = vocab[columns], log_probs.gather(1, columns).exp()
    slot = ChainSlot(tokens, entropies.double(), tops[:, 0].exp().double(), scores)
    singles = torch.stack([slot.entropies, slot.top_probs, scores], 1)
    numbers = torch.cat([singles, tokens.double(), probs.double()], 1)
    return state_behind(slot, rules, state), numbers


@dataclass(frozen=True, slots=True)
class ChainSlot:
    """One slot of B chains."""

    tokens: Tensor
    entropies: Tensor
    top_probs: Tensor
    scores: Tensor


def state_behind(slot: ChainSlot, rules: Tensor, state: Tensor) -> Tensor:
    """Return the states [4, B] of chains behind a slot, which every one that goes on keeps."""
    _, length, reason, path = state
    known = _acceptance(slot.top_probs, rules)
    probs = torch.where(slot.scores.isnan(), known, slot.scores)
    path, depth, token = path * probs, length + 1, slot.tokens[:, 0].double()
    stops = _stops(slot, rules, path, probs) | (rules[:, ChainNumber.MAX_DEPTH] <= depth)
    found = torch.where(stops, BY_POLICY, GOES_ON)
    found = torch.where(rules[:, ChainNumber.LIMIT] <= depth, AT_LIMIT, found)
    is_end = (rules[:, ChainNumber.ENDS : ChainNumber.POINTS] == token[:, None]).any(1)
    found = torch.where(is_end, AT_END, found).double()
    is_alive = reason == GOES_ON
    return torch.stack([token, length + is_alive, torch.where(is_alive, found, reason), path])


def _acceptance(top_probs: Tensor, rules: Tensor) -> Tensor:
    """Return the probabilities [B] that tokens of these confidences are kept; 0 for nan."""
    counts, points = rules[:, ChainNumber.NUM_POINTS], rules[:, ChainNumber.POINTS :]
    place = top_probs.nan_to_num(0.0).clamp(0.0, 1.0) * (counts - 1)
    below = torch.minimum(place.floor(), counts - 2)
    low = points.gather(1, below.long()[:, None]).squeeze(1)
    high = points.gather(1, below.long()[:, None] + 1).squeeze(1)
    return torch.where(top_probs.isnan(), 0.0, low + (place - below) * (high - low))


def _stops(slot: ChainSlot, rules: Tensor, path: Tensor, probs: Tensor) -> Tensor:
    """Return whether policies end paths whose last tokens are kept with these chances [B]."""
    policy, threshold = rules[:, ChainNumber.POLICY], rules[:, ChainNumber.THRESHOLD]
    bound = torch.sqrt(SVIP_SLOPE * slot.entropies.clamp(min=0.0))
    svip = bound > torch.where(policy == DECISION, rules[:, ChainNumber.FALLBACK], threshold)
    decision = torch.where(slot.scores.isnan(), svip, slot.scores <= threshold)
    # Comparisons with what is no number are false, which leaves the limit on length.
    by_policy = (policy == SVIP) & svip
    by_policy |= (policy == DECISION) & decision
    by_policy |= (policy == COST) & (path * probs < threshold)
    return by_policy | (path < rules[:, ChainNumber.LEAST_PATH])


def multiply(_: Any, a: Any, b: Any, plus: Any, *options: Any) -> Any:
    """Return the product of `tl.dot` in Triton's interpreter, with the same additions in each row,
    as on a GPU; a BLAS may have others, by the processor."""
    product = np.einsum("ik,kj->ij", a.data, b.data, dtype=plus.data.dtype)
    return type(plus)(product + plus.data, plus.dtype.scalar)


SHAPES: dict[str, Callable[..., Tensor | Sequence[Tensor]]] = {
    "add_norm": lambda x, *given: [torch.empty_like(x), *new_rows(x, x.shape[1], given[-1])],
    "place": lambda qkv, layer, *_: qkv.new_empty(
        len(qkv), qkv.shape[1] // layer.shape[2] - len(layer), layer.shape[2]
    ),
    **dict.fromkeys(
        ("attend", "attend_others"),
        lambda query, *given: new_rows(query, query[0].numel(), given[-1]),
    ),
    "read_states": lambda like, others, slots, size: like.new_empty(len(slots), len(others) * size),
    "finish": lambda x, gates, rounds: new_rows(x, x.shape[1] // (1 + gates), rounds),
    "draw": lambda logits, *_: logits.new_empty(len(logits), dtype=torch.int64),
    **dict.fromkeys(("edit", "truncate"), lambda logits, *_: torch.empty_like(logits.float())),
    "read_chain": lambda logits, first, head, chains, num: (
        torch.empty_like(chains[2]),
        chains[2].new_empty(len(logits), 3 + 2 * num),
    ),
}
for _name, _shape in SHAPES.items():
    torch.library.register_fake(f"slipstream::{_name}", _shape)
for _form in (draw, edit, truncate, read_chain):
    torch.library.impl(f"slipstream::{_form.__name__}", "cpu", _form)
