"""The GliDe loss: distance of the draft's distribution from the target's, and from the text.

Masks hide keys of the target that a draft would not have: blocks of lagging keys (GliDe with a
CaPE, section 4.1, with a block length and a grid offset of each document's own), and lags.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.glide.glide import GlideModel, Rope
from slipstream.models.glide.glide_files import save_glide
from slipstream.train.config import GlideLoss, LossSettings
from slipstream.train.features import TrainBatch, row_blocks

_LEAST_CHANCE = 1e-6
"""Least acceptance probability in the loss: below it the slope is bounded."""

Blocks = tuple[Tensor, Tensor]
"""Grids of B documents: block lengths [B] and how far each grid is shifted [B], int64."""


def blocks_of(noise: Tensor, settings: GlideLoss) -> Blocks:
    """Return block lengths and offsets below them, by uniform numbers [B, 2] in [0, 1)."""
    sizes, shares = noise.unbind(1)
    low, high = settings.block_min, settings.block_max + 1
    lengths = low + (sizes * (high - low)).long()
    return lengths, (shares * lengths).long()


def block_mask(length: int, blocks: Blocks, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the cross mask [B, 1, T, T], 0 where query j may read key k, else -inf.

    j reads k iff k lies in an earlier block of its document. Rows with no earlier block read all
    positions before their own, and position 0 itself.
    """
    lengths, offsets = blocks
    grid = (torch.arange(length, device=offsets.device) + offsets[:, None]) // lengths[:, None]
    return _additive(grid[:, None, :] < grid[:, :, None], dtype)[:, None]


def lag_mask(
    length: int, lag: int, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None
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


def counted(frozen: Frozen, batch: TrainBatch, prompt_weight: float) -> tuple[Tensor, Tensor]:
    """Return the weights [N] of the positions that count, and their numbers [N] in [B * T].

    Positions whose likeliest target token lies outside the vocabulary count nothing (EAGLE-3).
    """
    inside = frozen.columns(batch.argmax) >= 0
    weights = (position_weights(batch, prompt_weight) * inside).flatten()
    keep = weights.nonzero()[:, 0]
    return weights[keep], keep


class Goal(NamedTuple):
    """States [N, d] of the target, its trimmed head [V_d, d], and weights [S, N] of the losses of S
    states of the draft at each."""

    target: Tensor
    head: Tensor
    weights: Tensor


class TrimmedLoss(torch.autograd.Function):
    """Per row, on the trimmed vocabulary: kl_weight * KL(target || draft), up to the target's
    entropy, which the draft cannot change, plus acceptance_weight * -log of the chance that a
    draw of the draft is accepted, which is sum(min(target, draft)) (LK losses, arXiv 2602.23881).

    Scores are computed a block of rows at a time and their gradients at once, so that no
    [rows, V_d] tensor outlives its block.
    """

    @staticmethod
    def forward(
        ctx: Any, drafts: Tensor, own_head: Tensor, goal: Goal, settings: LossSettings
    ) -> Tensor:
        """drafts [S, N, d], read by `own_head` [V_d, d] -> [] float32."""
        dtype, own = goal.head.dtype, own_head.to(goal.head.dtype)
        gradient, total = torch.empty_like(drafts), drafts.new_zeros((), dtype=torch.float32)
        by_head = torch.zeros_like(own_head) if ctx.needs_input_grad[1] else None
        for rows in row_blocks(goal.target):
            probs = F.softmax((goal.target[rows].to(dtype) @ goal.head.T).float(), -1)
            for draft, out, weights in zip(drafts, gradient, goal.weights, strict=True):
                states = draft[rows].to(dtype)
                logs = F.log_softmax((states @ own.T).float(), -1)
                losses, slopes = _losses(probs, logs, settings)
                total += losses @ weights[rows]
                slopes = slopes.mul_(weights[rows, None]).to(dtype)
                out[rows] = (slopes @ own).to(draft.dtype)
                if by_head is not None:
                    by_head += slopes.T @ states
        ctx.save_for_backward(gradient, by_head)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the draft's states and, where it is trained, of its head."""
        gradient, by_head = ctx.saved_tensors
        slope = slopes[0]
        scaled = None if by_head is None else by_head * slope
        return gradient * slope.to(gradient.dtype), scaled, None, None


def _losses(target: Tensor, logs: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """Return losses [R] of distributions [R, V_d], the draft's as logarithms, overwritten, and
    their gradients by the draft's scores [R, V_d]."""
    losses = -settings.kl_weight * torch.linalg.vecdot(target, logs)
    chances = logs.exp_()
    slopes = (chances - target).mul_(settings.kl_weight)
    if settings.acceptance_weight:
        refused, steeper = _refusal(target, chances)
        losses += settings.acceptance_weight * refused
        slopes.add_(steeper, alpha=settings.acceptance_weight)
    return losses, slopes


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
        columns[rows] = (draft[rows].to(frozen.head.dtype) @ frozen.head.T).argmax(-1)
    return frozen.vocab[columns] == argmax


@torch.inference_mode()
def lag_matches(model: nn.Module, frozen: Frozen, batch: TrainBatch, num_lags: int) -> Tensor:
    """Return whether the draft proposes the likeliest token, by hidden keys: [num_lags, B, T] bool,
    false outside generated positions."""
    keep = generated_positions(batch).flatten()
    argmax = batch.argmax.flatten()[keep]
    out = torch.zeros(num_lags, keep.numel(), dtype=torch.bool, device=keep.device)
    for lag in range(num_lags):
        mask = lag_mask(
            batch.ids.shape[1], lag, dtype=frozen.rope.cos.dtype, device=batch.ids.device
        ).expand(len(batch.ids), -1, -1, -1)
        draft = states(model, frozen, batch, mask).flatten(0, 1)[keep]
        out[lag, keep] = greedy_matches(draft, argmax, frozen)
    return out.view(num_lags, *batch.ids.shape)


def generated_positions(batch: TrainBatch) -> Tensor:
    """Return the positions that predict a generated token, [B, T] bool."""
    return position_weights(batch, 0.0) > 0


@dataclass(frozen=True, slots=True)
class GlideMethod:
    """A GliDe draft in training."""

    model: GlideModel
    frozen: Frozen
    settings: GlideLoss

    def loss(self, trained: nn.Module, batch: TrainBatch, noise: Tensor) -> LossSum:
        """Return the loss of draws on the trimmed vocabulary, and of hidden states; `noise` draws
        the blocks of each document."""
        frozen, settings = self.frozen, self.settings
        blocks = blocks_of(noise, settings)
        mask = block_mask(batch.ids.shape[1], blocks, dtype=frozen.rope.cos.dtype)
        weights, keep = counted(frozen, batch, settings.prompt_weight)
        draft = states(trained, frozen, batch, mask).flatten(0, 1)[keep]
        target = batch.hidden.flatten(0, 1)[keep]
        goal = Goal(target, frozen.head, weights[None])
        value: Tensor = TrimmedLoss.apply(draft[None], frozen.head, goal, settings)  # type: ignore[no-untyped-call]
        if settings.hidden_weight:
            distance = F.smooth_l1_loss(draft.float(), target.float(), reduction="none").mean(-1)
            value = value + settings.hidden_weight * (distance @ weights)
        return LossSum(value, weights.sum())

    def matches(self, batch: TrainBatch, num_lags: int) -> Tensor:
        """Return which proposals are the likeliest tokens, as `lag_matches`."""
        return lag_matches(self.model, self.frozen, batch, num_lags)

    def save(self, directory: Path) -> None:
        """Write the weights as they are now."""
        save_glide(self.model, self.frozen.vocab, directory)
