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
    TrimmedLoss,
    counted,
    generated_positions,
    greedy_matches,
)

_DECAY = 0.8
"""Factor of a step's weight in the loss to that of the step before it."""


def unrolled(model: nn.Module, frozen: Frozen, batch: TrainBatch, steps: int) -> Tensor:
    """Return what the head reads in each step, [steps, B, T, d], at the position whose next token
    it predicts: step i at position q is of the chain that began with the pair at q - 1 - i, as in a
    draft whose target is so far behind. There is none at the first 1 + i positions."""
    assert batch.states is not None, "the features are of a draft that reads states"
    length, x = batch.ids.shape[1], F.embedding(batch.ids, frozen.embeddings)
    hidden, _ = model(x, batch.states.to(x.dtype), frozen.rope, steps)
    moved = [F.pad(rows, (0, 0, 1 + step, 0))[:, :length] for step, rows in enumerate(hidden)]
    return torch.stack(moved)


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
        steps = torch.arange(self.settings.unrolled, device=keep.device)[:, None]
        drafts = unrolled(trained, self.frozen, batch, len(steps)).flatten(1, 2)[:, keep]
        weights = weights * _DECAY**steps * (keep % batch.ids.shape[1] > steps)
        goal = Goal(batch.hidden.flatten(0, 1)[keep], self.frozen.head, weights)
        head = self.model.lm_head.weight
        value: Tensor = TrimmedLoss.apply(drafts, head, goal, self.settings)  # type: ignore[no-untyped-call]
        return LossSum(value, weights.sum())

    @torch.inference_mode()
    def matches(self, batch: TrainBatch, num_lags: int) -> Tensor:
        """Return whether the draft proposes the likeliest token, [num_lags, B, T] bool, false
        outside generated positions: step i on its own outputs, the newest i states hidden."""
        keep = generated_positions(batch)
        own = replace(self.frozen, head=self.model.lm_head.weight.to(self.frozen.head.dtype))
        out = torch.zeros(num_lags, *keep.shape, dtype=torch.bool, device=keep.device)
        for step, rows in enumerate(unrolled(self.model, self.frozen, batch, num_lags)):
            out[step, keep] = greedy_matches(rows[keep], batch.argmax[keep], own)
            out[step, :, : step + 1] = False
        return out

    def save(self, directory: Path) -> None:
        """Write the head as it is now."""
        save_eagle(self.model, self.frozen.vocab, self.published, directory)
