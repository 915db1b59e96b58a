"""The GliDe loss: distance of the draft's distribution from the target's, and from the text.

Masks hide keys of the target that a draft would not have: blocks of lagging keys (GliDe with a
CaPE, section 4.1, with a block length and a grid offset of each document's own), and lags.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import Rope
from slipstream.train.config import LossSettings
from slipstream.train.features import TrainBatch, best_columns, row_blocks

_LEAST_CHANCE = 1e-6
"""Least acceptance probability in the loss: below it the slope is bounded."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Grids of B documents: block lengths [B] and how far each grid is shifted [B], int64."""

    lengths: Tensor
    offsets: Tensor

    def part(self, start: int, stride: int) -> "Blocks":
        """Return those of every `stride`-th document from `start` on."""
        return Blocks(self.lengths[start::stride], self.offsets[start::stride])

    def to(self, device: torch.device) -> "Blocks":
        """Return the same on `device`."""
        return Blocks(self.lengths.to(device), self.offsets.to(device))

    def numbers(self, length: int) -> Tensor:
        """Return the number of the block that each of `length` positions lies in, [B, T]."""
        positions = torch.arange(length, device=self.offsets.device)
        return (positions + self.offsets[:, None]) // self.lengths[:, None]


def draw_blocks(count: int, settings: LossSettings, generator: torch.Generator) -> Blocks:
    """Return a block length and an offset below it for each of `count` documents."""
    low, high = settings.block_min, settings.block_max + 1
    lengths = torch.randint(low, high, (count,), generator=generator)
    return Blocks(lengths, (torch.rand(count, generator=generator) * lengths).long())


def block_mask(length: int, blocks: Blocks, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the cross mask [B, 1, T, T], 0 where query j may read key k, else -inf.

    j reads k iff k lies in an earlier block of its document. Rows with no earlier block read all
    positions before their own, and position 0 itself.
    """
    grid = blocks.numbers(length)
    return _additive(grid[:, None, :] < grid[:, :, None], dtype)[:, None]


def lag_mask(
    length: int,
    lag: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Return the cross mask [1, 1, T, T] without the newest `lag` keys before each query.

    The first rows, which would see nothing, see all positions before their own.
    """
    positions = torch.arange(length, device=device)
    return _additive((positions[None, :] < positions[:, None] - lag)[None], dtype)[:, None]


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where allowed [B, T, T], else -inf; empty rows read what came before them."""
    positions = torch.arange(allowed.shape[-1], device=allowed.device)
    before = positions[None, :] < positions[:, None]
    before[0, 0] = True
    allowed = torch.where(allowed.any(-1, keepdim=True), allowed, before)
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill_(~allowed, float("-inf"))


@dataclass(frozen=True, slots=True)
class Frozen:
    """Parts of the target in use: embeddings [V, d], trimmed head [V_d, d], vocab [V_d]
    (target ids, ascending) and rotary cos and sin of all positions, in the dtype of attention."""

    embeddings: Tensor
    head: Tensor
    vocab: Tensor
    rope: Rope

    def columns(self, ids: Tensor) -> Tensor:
        """Return the head column of each target id, -1 where there is none; shaped as `ids`."""
        places = torch.searchsorted(self.vocab, ids).clamp_max(len(self.vocab) - 1)
        return torch.where(self.vocab[places] == ids, places, -1)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Frozen":
        """Return the same on a device, computing in `dtype`."""
        rope = Rope(*(table.to(device, dtype) for table in self.rope))
        tables = (self.embeddings.to(device, dtype), self.head.to(device, dtype))
        return Frozen(*tables, self.vocab.to(device), rope)


def states(model: nn.Module, frozen: Frozen, batch: TrainBatch, mask: Tensor) -> Tensor:
    """Return final-normed states of the draft, [B, T, d]."""
    length = batch.ids.shape[1]
    rope = Rope(frozen.rope.cos[:length], frozen.rope.sin[:length])
    result: Tensor = model(F.embedding(batch.ids, frozen.embeddings), batch.kvs, rope, mask)
    return result


def position_weights(batch: TrainBatch, prompt_weight: float) -> Tensor:
    """Return the weight of each position's prediction [B, T]: 1 where the next token was generated,
    `prompt_weight` in the prompt, 0 in the padding."""
    positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
    inside = positions < batch.lengths[:, None]
    generated = positions >= batch.num_prompts[:, None] - 1
    return torch.where(generated, 1.0, prompt_weight) * inside


class LossSum(NamedTuple):
    """Weighted sum of losses and the sum of its weights, both []; the loss is their ratio."""

    value: Tensor
    weight: Tensor


def glide_loss(
    model: nn.Module, frozen: Frozen, batch: TrainBatch, blocks: Blocks, settings: LossSettings
) -> LossSum:
    """Return the loss of draws on the trimmed, renormalised vocabulary, and of hidden states.

    Positions whose likeliest target token lies outside the vocabulary count nothing (EAGLE-3).
    """
    mask = block_mask(batch.ids.shape[1], blocks, dtype=frozen.rope.cos.dtype)
    best = frozen.columns(batch.argmax)
    weights = position_weights(batch, settings.prompt_weight) * (best >= 0)
    keep = weights.flatten().nonzero()[:, 0]
    draft = states(model, frozen, batch, mask).flatten(0, 1)[keep]
    target = batch.hidden.flatten(0, 1)[keep]
    losses: Tensor = TrimmedLoss.apply(draft, target, frozen.head, settings)  # type: ignore[no-untyped-call]
    if settings.hidden_weight:
        distance = F.smooth_l1_loss(draft.float(), target.float(), reduction="none").mean(-1)
        losses = losses + settings.hidden_weight * distance
    return LossSum(losses @ weights.flatten()[keep], weights.sum())


class TrimmedLoss(torch.autograd.Function):
    """Per row, on the trimmed vocabulary: kl_weight * KL(target || draft), up to the target's
    entropy, which the draft cannot change, plus acceptance_weight * -log of the chance that a
    draw of the draft is accepted, which is sum(min(target, draft)) (LK losses, arXiv 2602.23881).

    Scores are computed a block of rows at a time and their gradient at once, so that no
    [rows, V_d] tensor outlives its block.
    """

    @staticmethod
    def forward(
        ctx: Any, draft: Tensor, target: Tensor, head: Tensor, weights: LossSettings
    ) -> Tensor:
        """draft, target [N, d]; head [V_d, d] -> losses [N] float32."""
        gradient, losses = torch.empty_like(draft), draft.new_zeros(len(draft), dtype=torch.float32)
        for rows in row_blocks(draft):
            probs = F.softmax((target[rows].to(head.dtype) @ head.T).float(), -1)
            logs = F.log_softmax((draft[rows].to(head.dtype) @ head.T).float(), -1)
            losses[rows] = -weights.kl_weight * torch.linalg.vecdot(probs, logs)
            chances = logs.exp_()
            slopes = (chances - probs).mul_(weights.kl_weight)
            if weights.acceptance_weight:
                refused, steeper = _refusal(probs, chances)
                losses[rows] += weights.acceptance_weight * refused
                slopes.add_(steeper, alpha=weights.acceptance_weight)
            gradient[rows] = (slopes.to(head.dtype) @ head).to(draft.dtype)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of `draft` only."""
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0][:, None].to(gradient.dtype), None, None, None


def _refusal(target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log(sum(min(target, draft))) [R] of distributions [R, V_d], and its gradient by the
    draft's scores [R, V_d]."""
    accepted = torch.minimum(target, draft).sum(-1, keepdim=True).clamp_min(_LEAST_CHANCE)
    short = draft.where(draft < target, 0.0)
    slopes = torch.addcmul(-short, draft, short.sum(-1, keepdim=True)).div_(accepted)
    return -accepted.log()[:, 0], slopes


def greedy_matches(draft: Tensor, argmax: Tensor, frozen: Frozen) -> Tensor:
    """Return whether the likeliest tokens agree, [N] bool; draft [N, d], argmax [N]."""
    columns = torch.zeros_like(argmax)
    for rows in row_blocks(draft):
        columns[rows] = best_columns(draft[rows].to(frozen.head.dtype) @ frozen.head.T)
    return frozen.vocab[columns] == argmax
