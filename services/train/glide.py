"""The GliDe loss: what the draft may see in training, and how far its law is from the target's.

GliDe with a CaPE, section 4.1 (block-wise cross mask), with a block length and a grid offset
of each document's own. Knows nothing of files, optimisers or schedules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.models.glide import GlideModel, Rope
from slipstream.train.config import LossSettings
from slipstream.train.features import Batch

_ROWS = 256
"""Rows whose scores are alive at once; the whole [rows, V_d] block then stays in cache."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What the draft borrows from the target: embeddings [V, d], trimmed head [V_d, d], vocab
    [V_d] (target ids) and rotary cos and sin of all positions."""

    embeddings: Tensor
    head: Tensor
    vocab: Tensor
    rope: Rope


def block_mask(length: int, blocks: Tensor, offsets: Tensor) -> Tensor:
    """Cross mask [B, 1, T, T], 0 where query j may read key k, else -inf; blocks, offsets [B].

    j reads k iff k lies in an earlier block of a grid of `blocks[b]` shifted by `offsets[b]`.
    Rows with no earlier block read all positions before their own, and position 0 itself.
    """
    positions = torch.arange(length)
    grid = (positions[None] + offsets[:, None]) // blocks[:, None]
    allowed = grid[:, None, :] < grid[:, :, None]
    before = positions[None, :] < positions[:, None]
    before[0, 0] = True
    allowed = torch.where(allowed.any(-1, keepdim=True), allowed, before)
    return _additive(allowed)[:, None]


def lag_mask(length: int, lag: int) -> Tensor:
    """Cross mask [1, 1, T, T] in which each query misses the newest `lag` keys before it.

    The first rows, which would see nothing, see all positions before their own.
    """
    positions = torch.arange(length)
    allowed = positions[None, :] < positions[:, None] - lag
    before = positions[None, :] < positions[:, None]
    before[0, 0] = True
    return _additive(torch.where(allowed.any(-1, keepdim=True), allowed, before))[None, None]


def draw_masks(batch: Batch, settings: LossSettings, generator: torch.Generator) -> Tensor:
    """A block mask with block length and offset drawn for each document."""
    count, length = batch.ids.shape
    low, high = settings.block_min, settings.block_max + 1
    blocks = torch.randint(low, high, (count,), generator=generator)
    offsets = (torch.rand(count, generator=generator) * blocks).long()
    return block_mask(length, blocks, offsets)


def states(model: GlideModel, frozen: Frozen, batch: Batch, mask: Tensor) -> Tensor:
    """Final-normed states of the draft, [B, T, d]."""
    length = batch.ids.shape[1]
    rope = Rope(frozen.rope.cos[:length], frozen.rope.sin[:length])
    result: Tensor = model(F.embedding(batch.ids, frozen.embeddings), batch.kvs, rope, mask)
    return result


def position_weights(batch: Batch, prompt_weight: float) -> Tensor:
    """Weight of each position's prediction [B, T]: 1 where the next token was generated,
    `prompt_weight` in the prompt, 0 in the padding."""
    positions = torch.arange(batch.ids.shape[1])[None]
    inside = positions < batch.lengths[:, None]
    generated = positions >= batch.num_prompts[:, None] - 1
    return torch.where(generated, 1.0, prompt_weight) * inside


def glide_loss(
    model: GlideModel, frozen: Frozen, batch: Batch, mask: Tensor, settings: LossSettings
) -> Tensor:
    """Mean forward KL on the trimmed, renormalised vocabulary, plus the hidden-state term.

    Positions whose likeliest target token lies outside the vocabulary count nothing (EAGLE-3).
    """
    draft = states(model, frozen, batch, mask).flatten(0, 1)
    target = batch.hidden.flatten(0, 1)
    weights = position_weights(batch, settings.prompt_weight).flatten()
    keep = weights.nonzero()[:, 0]
    draft, target, weights = draft[keep], target[keep], weights[keep]
    weights = weights * torch.isin(batch.argmax.flatten()[keep], frozen.vocab)
    kl: Tensor = TrimmedKl.apply(  # type: ignore[no-untyped-call]
        draft, target, frozen.head, weights
    )
    total = weights.sum().clamp_min(1.0)
    if settings.hidden_weight == 0:
        return kl / total
    distance = F.smooth_l1_loss(draft.float(), target.float(), reduction="none").mean(-1)
    return (kl + settings.hidden_weight * (distance * weights).sum()) / total


class TrimmedKl(torch.autograd.Function):
    """Sum over rows of weight * KL(target law || draft law), both on the trimmed vocabulary, up
    to the target's entropy, which the draft cannot change.

    Scores are computed a block of rows at a time and their gradient at once, so that no
    [rows, V_d] tensor outlives its block.
    """

    @staticmethod
    def forward(ctx: Any, draft: Tensor, target: Tensor, head: Tensor, weights: Tensor) -> Tensor:
        """draft, target [N, d]; head [V_d, d]; weights [N] -> loss []."""
        gradient, total = torch.empty_like(draft), torch.zeros(())
        for start in range(0, len(draft), _ROWS):
            rows = slice(start, start + _ROWS)
            law = F.softmax((target[rows].to(head.dtype) @ head.T).float(), -1)
            logs = F.log_softmax((draft[rows].to(head.dtype) @ head.T).float(), -1)
            total -= torch.linalg.vecdot(law, logs) @ weights[rows]
            slope = logs.exp_().sub_(law).mul_(weights[rows, None]).to(head.dtype)
            gradient[rows] = (slope @ head).to(draft.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of `draft` only."""
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0], None, None, None


def greedy_matches(draft: Tensor, argmax: Tensor, frozen: Frozen) -> Tensor:
    """Whether the draft's likeliest token is the target's, [N] bool; draft [N, d], argmax [N]."""
    ours = [(rows.to(frozen.head.dtype) @ frozen.head.T).argmax(-1) for rows in draft.split(_ROWS)]
    return frozen.vocab[torch.cat(ours)] == argmax


def accepted_per_round(acceptance: Sequence[float], depth: int) -> float:
    """Expected accepted tokens of a chain of `depth`, if position i is accepted with
    `acceptance[i]` whatever came before."""
    total, alive = 0.0, 1.0
    for rate in acceptance[:depth]:
        alive *= rate
        total += alive
    return total


def _additive(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape).masked_fill_(~allowed, float("-inf"))
