"""The target's own answers to many prompts: a batch of conversations, decoded to their ends.

Knows nothing of files, shards or chat templates; randomness comes in as a generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.core.errors import TrainingError
from slipstream.models.batch import BatchCache, BatchModel

_COMPACT_BELOW = 0.75
"""Rows that have ended are dropped from the batch once so small a share is still running."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt (token ids) to answer at a temperature; 0 takes the likeliest token."""

    prompt: tuple[int, ...]
    temperature: float

    def __post_init__(self) -> None:
        if not self.prompt:
            raise TrainingError("a prompt to answer must hold at least 1 token")
        if not 0 <= self.temperature <= 100:
            raise TrainingError(f"the temperature is {self.temperature}, not within 0..100")


@dataclass(frozen=True, slots=True)
class EndRules:
    """Where answers end: at any of `ends`, which is kept, or after `max_new_tokens`."""

    ends: frozenset[int]
    max_new_tokens: int

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise TrainingError(f"max_new_tokens is {self.max_new_tokens}, it must be at least 1")


def answers(
    model: BatchModel, asks: Sequence[Ask], rules: EndRules, generator: torch.Generator
) -> list[list[int]]:
    """The answers to `asks`, in their order, decoded together."""
    cache, logits = model.open([ask.prompt for ask in asks])
    temperatures = torch.tensor([ask.temperature for ask in asks], device=logits.device)
    out: list[list[int]] = [[] for _ in asks]
    rows = list(range(len(asks)))
    for left in range(rules.max_new_tokens, 0, -1):
        tokens = draw(logits, temperatures, generator)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if not out[row] or out[row][-1] not in rules.ends:
                out[row].append(token)
        alive = [i for i, row in enumerate(rows) if out[row][-1] not in rules.ends]
        if not alive or left == 1:
            break
        if len(alive) < _COMPACT_BELOW * len(rows):
            rows, tokens, temperatures = _compact(cache, alive, rows, tokens, temperatures)
        logits = model.step(cache, tokens)
    return out


def draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """A token per row, [B]: the likeliest where the temperature is 0, else one of the law.

    logits [B, V]; temperatures [B]. One uniform number per row, inverted through the law's sum.
    """
    tokens = logits.argmax(-1)
    warm = temperatures.nonzero()[:, 0]
    if len(warm):
        law = torch.softmax(logits[warm].float() / temperatures[warm, None], -1).cumsum_(-1)
        place = torch.rand(len(logits), 1, generator=generator)[warm.cpu()].to(law.device)
        picked = torch.searchsorted(law, place * law[:, -1:])[:, 0]
        tokens[warm] = picked.clamp_max(logits.shape[-1] - 1)
    return tokens


def _compact(
    cache: BatchCache, alive: Sequence[int], rows: Sequence[int], tokens: Tensor, heat: Tensor
) -> tuple[list[int], Tensor, Tensor]:
    """Keep only the rows still running: their numbers, last tokens and temperatures."""
    index = torch.tensor(alive, device=tokens.device)
    cache.keep(index)
    return [rows[i] for i in alive], tokens[index], heat[index]
