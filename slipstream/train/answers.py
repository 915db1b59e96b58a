"""Answers of a target to many prompts at once, and conversations of them as training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.models.causal import CausalModel
from slipstream.models.kv.batch import Part
from slipstream.models.kv.cache import KvCache
from slipstream.models.kv.pool import BLOCK_SIZE, round_up
from slipstream.models.torch.arrays import as_tensor
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.features import best_columns

_COMPACT_BELOW = 0.75
"""Rows that have ended are dropped from the batch once so small a share is still running."""
Line = dict[str, Any]
"""A document as it is written: ids "p" and "g", and the temperature "t" if one was drawn at."""


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversation: ids of its opening, the user's text after each answer, and the temperature of
    its answers."""

    prompt: tuple[int, ...]
    turns: tuple[str, ...] = ()
    temperature: float = 0.0


class BulkModel:
    """A causal model that continues B conversations, a token of each per step."""

    def __init__(self, model: CausalModel, *, max_new_tokens: int) -> None:
        """Up to `max_new_tokens` follow each prompt."""
        self._model = model
        self.max_new_tokens = max_new_tokens

    def open(self, prompts: Sequence[Sequence[int]]) -> tuple[list[KvCache], Tensor]:
        """Caches of the prompts and the logits [B, V] behind each one's last token."""
        ends = [round_up(len(prompt) + self.max_new_tokens, BLOCK_SIZE) for prompt in prompts]
        pool = self._model.pool(sum(ends) // BLOCK_SIZE)
        caches = [self._model.open_in(pool) for _ in prompts]
        for own, prompt in zip(caches, prompts, strict=True):
            self._model.prefill(own, prompt[:-1])
        return caches, self.step(caches, torch.tensor([prompt[-1] for prompt in prompts]))

    def step(self, caches: Sequence[KvCache], tokens: Tensor) -> Tensor:
        """Append a token to every row, [B]; the logits [B, V] behind it."""
        pairs = zip(caches, tokens.tolist(), strict=True)
        hidden, slots = self._model.forward([Part(own, [token]) for own, token in pairs])
        for own, kept in zip(caches, slots, strict=True):
            own.keep(kept)
        return as_tensor(self._model.logits(hidden))


def answers(
    model: BulkModel, talks: Sequence[Talk], ends: frozenset[int], generator: torch.Generator
) -> list[list[int]]:
    """Return the answers to the openings of `talks`, in their order, decoded together: up to any of
    `ends`, which is kept, or as long as the model's may be.

    Every answer has random numbers of its own, so that none depends on how long others are.
    """
    caches, logits = model.open([talk.prompt for talk in talks])
    temperatures = torch.tensor([talk.temperature for talk in talks], device=logits.device)
    noise = torch.rand(len(talks), model.max_new_tokens, generator=generator).to(logits.device)
    numbers = list(range(len(talks)))
    out: list[list[int]] = [[] for _ in talks]
    for step in range(model.max_new_tokens):
        tokens = draw(logits, temperatures, noise[:, step])
        for row, token in zip(numbers, tokens.tolist(), strict=True):
            if not out[row] or out[row][-1] not in ends:
                out[row].append(token)
        alive = [i for i, row in enumerate(numbers) if out[row][-1] not in ends]
        if not alive or step + 1 == model.max_new_tokens:
            break
        if len(alive) < _COMPACT_BELOW * len(numbers):
            for ended in sorted(set(range(len(caches))).difference(alive)):
                caches[ended].close()
            numbers, caches = [numbers[i] for i in alive], [caches[i] for i in alive]
            temperatures, noise, tokens = temperatures[alive], noise[alive], tokens[alive]
        logits = model.step(caches, tokens)
    return out


def draw(logits: Tensor, temperatures: Tensor, noise: Tensor) -> Tensor:
    """Return a token per row, [B]: the likeliest at temperature 0, else a sample.

    logits [B, V]; temperatures [B]; noise [B] in [0, 1), where the cumulated probabilities are
    inverted.
    """
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    warm, cold = temperatures.nonzero()[:, 0], (temperatures == 0).nonzero()[:, 0]
    if len(cold):
        tokens[cold] = best_columns(logits[cold])
    if len(warm):
        sums = torch.softmax(logits[warm].double() / temperatures[warm, None], -1).cumsum(-1)
        places = noise[warm, None] * sums[:, -1:]
        found = torch.searchsorted(sums, places, right=True)[:, 0]
        tokens[warm] = found.clamp_max(logits.shape[1] - 1)
    return tokens


def conversations(
    model: BulkModel,
    tokenizer: TextTokenizer,
    talks: Sequence[Talk],
    ends: frozenset[int],
    *,
    seed: int,
    max_prompt_tokens: int,
) -> list[Line]:
    """Return a document for every answer, with all tokens before it.

    A conversation ends before a turn with which it would exceed `max_prompt_tokens`.
    """
    generator = torch.Generator().manual_seed(seed)
    lines: list[Line] = []
    while talks:
        found = answers(model, talks, ends, generator)
        lines += [
            {"p": list(talk.prompt), "g": answer, "t": talk.temperature}
            for talk, answer in zip(talks, found, strict=True)
        ]
        later = [
            _next(talk, answer, tokenizer)
            for talk, answer in zip(talks, found, strict=True)
            if talk.turns
        ]
        talks = [talk for talk in later if len(talk.prompt) <= max_prompt_tokens]
    return lines


def _next(talk: Talk, answer: Sequence[int], tokenizer: TextTokenizer) -> Talk:
    text, *rest = talk.turns
    turn = encode_prompt(tokenizer, text, last_token=answer[-1])
    return Talk((*talk.prompt, *answer, *turn), tuple(rest), talk.temperature)
