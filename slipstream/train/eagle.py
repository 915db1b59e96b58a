"""The EAGLE-3 loss: training-time test (EAGLE-3, section 3), on the trimmed vocabulary."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipstream.models.eagle.eagle import EagleModel
from slipstream.models.eagle.eagle_init import save_eagle
from slipstream.train.config import EagleLoss
from slipstream.train.features import TrainBatch
from slipstream.train.glide import (
    Frozen,
    Goal,
    LossSum,
    counted,
    generated_positions,
    greedy_matches,
    trimmed_loss,
)

_DECAY = 0.8
"""Factor of a step's weight in the loss to that of the step before it."""


def unrolled(model: nn.Module, frozen: Frozen, batch: TrainBatch, steps: int) -> Tensor:
    """Return what the head reads in each step, [steps, B, T, d], at the position whose next token
    it predicts: the state of step i at position q is of the chain that began i + 1 before it.

    It reads true features up to there, as does a draft whose target is i + 1 tokens behind; there
    is none at the first i + 1 positions, where the states are zeros.
    """
    assert batch.states is not None, "the features are of a draft that reads states"
    length, x = batch.ids.shape[1], F.embedding(batch.ids, frozen.embeddings)
    hidden, _ = model(x, batch.states.to(x.dtype), frozen.rope, steps)
    moved = [F.pad(rows, (0, 0, 1 + step, 0))[:, :length] for step, rows in enumerate(hidden)]
    return torch.stack(moved)


def has_begun(steps: int, places: Tensor) -> Tensor:
    """Return where `unrolled` has states, [steps, N] bool, of positions [N] in their documents."""
    return places > torch.arange(steps, device=places.device)[:, None]


@dataclass(frozen=True, slots=True)
class EagleMethod:
    """An EAGLE-3 head in training; `published` is its config.json."""

    model: EagleModel
    frozen: Frozen
    settings: EagleLoss
    published: dict[str, Any]

    def loss(self, trained: nn.Module, batch: TrainBatch, noise: Tensor) -> LossSum:
        """Return the loss of all steps; nothing is drawn."""
        weights, keep = counted(self.frozen, batch, self.settings.prompt_weight)
        steps = self.settings.unrolled
        drafts = unrolled(trained, self.frozen, batch, steps).flatten(1, 2)[:, keep]
        shares = _DECAY ** torch.arange(steps, device=keep.device)[:, None]
        weights = weights * shares * has_begun(steps, keep % batch.ids.shape[1])
        goal = Goal(batch.hidden.flatten(0, 1)[keep], self.frozen.head, weights)
        value = trimmed_loss(drafts, self.model.lm_head.weight, goal, self.settings)
        return LossSum(value, weights.sum())

    @torch.inference_mode()
    def matches(self, batch: TrainBatch, num_lags: int) -> Tensor:
        """Return whether the draft proposes the likeliest token, [num_lags, B, T] bool, false
        outside generated positions: step i on its own outputs, the newest i states hidden."""
        keep = generated_positions(batch).flatten()
        argmax, places = batch.argmax.flatten()[keep], keep.nonzero()[:, 0] % batch.ids.shape[1]
        own = replace(self.frozen, head=self.model.lm_head.weight.to(self.frozen.head.dtype))
        drafts = unrolled(self.model, self.frozen, batch, num_lags).flatten(1, 2)[:, keep]
        found = torch.stack([greedy_matches(rows, argmax, own) for rows in drafts])
        out = torch.zeros(num_lags, keep.numel(), dtype=torch.bool, device=keep.device)
        out[:, keep] = found & has_begun(num_lags, places)
        return out.view(num_lags, *batch.ids.shape)

    def save(self, directory: Path) -> None:
        """Write the head as it is now."""
        save_eagle(self.model, self.frozen.vocab, self.published, directory)
