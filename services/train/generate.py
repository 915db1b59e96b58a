"""The target's own answers to many prompts: a batch of conversations, decoded to their ends.

Knows nothing of files, shards or chat templates; randomness comes in as a generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.models.batch import BatchModel

_COMPACT_BELOW = 0.75
"""Rows that have ended are dropped from the batch once so small a share is still running."""
_BLOCK = 64
"""Tokens of the vocabulary that are looked at together."""


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
    """The answers to `asks`, in their order, decoded together.

    Every answer has random numbers of its own, so that none depends on how long others are.
    """
    cache, logits = model.open([ask.prompt for ask in asks])
    rows = _Rows(
        torch.arange(len(asks), device=logits.device),
        torch.tensor([ask.temperature for ask in asks], device=logits.device),
        torch.rand(len(asks), rules.max_new_tokens, generator=generator).to(logits.device),
    )
    out: list[list[int]] = [[] for _ in asks]
    for step in range(rules.max_new_tokens):
        tokens = draw(logits, rows.temperatures, rows.noise[:, step])
        numbers = rows.numbers.tolist()
        for row, token in zip(numbers, tokens.tolist(), strict=True):
            if not out[row] or out[row][-1] not in rules.ends:
                out[row].append(token)
        alive = [i for i, row in enumerate(numbers) if out[row][-1] not in rules.ends]
        if not alive or step + 1 == rules.max_new_tokens:
            break
        if len(alive) < _COMPACT_BELOW * len(numbers):
            index = torch.tensor(alive, device=tokens.device)
            cache.keep(index)
            rows, tokens = rows.only(index), tokens[index]
        logits = model.step(cache, tokens)
    return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """Of each row still decoded: its number [B], temperature [B] and noise [B, steps]."""

    numbers: Tensor
    temperatures: Tensor
    noise: Tensor

    def only(self, index: Tensor) -> "_Rows":
        return _Rows(self.numbers[index], self.temperatures[index], self.noise[index])


def draw(logits: Tensor, temperatures: Tensor, noise: Tensor) -> Tensor:
    """A token per row, [B]: the likeliest where the temperature is 0, else one of the law.

    logits [B, V]; temperatures [B]; noise [B] in [0, 1), where the law is inverted.
    """
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    warm, cold = temperatures.nonzero()[:, 0], (temperatures == 0).nonzero()[:, 0]
    if len(cold):
        tokens[cold] = _likeliest(logits[cold])
    if len(warm):
        law = torch.softmax(logits[warm].float() / temperatures[warm, None], -1)
        tokens[warm] = _inverted(law, noise[warm])
    return tokens


def _likeliest(logits: Tensor) -> Tensor:
    """`argmax(-1)` of [B, V], maxima of blocks first: several times faster on a CPU."""
    blocks = _blocks(logits, float("-inf"))
    block = blocks.amax(-1).argmax(-1)
    inner = blocks[torch.arange(len(blocks), device=block.device), block].argmax(-1)
    return block * _BLOCK + inner


def _inverted(law: Tensor, noise: Tensor) -> Tensor:
    """The first ids up to which `law` [B, V] sums to more than `noise` [B] of its whole."""
    blocks = _blocks(law, 0.0)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    place = noise[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, place, right=True).clamp_max(sums.shape[1] - 1)
    before = sums.gather(1, (block - 1).clamp_min(0)).where(block > 0, 0.0)
    inside = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]]
    inner = torch.searchsorted(inside.double().cumsum(-1), place - before, right=True)
    token = block * _BLOCK + inner.clamp_max(_BLOCK - 1)
    return token[:, 0].clamp_max(law.shape[1] - 1)


def _blocks(values: Tensor, fill: float) -> Tensor:
    """[B, V] as [B, blocks, block], filled up at the end."""
    padded = nn.functional.pad(values, (0, -values.shape[1] % _BLOCK), value=fill)
    out: Tensor = padded.unflatten(-1, (-1, _BLOCK))
    return out
