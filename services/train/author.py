"""Contents of a shard: the target's answers, turn by turn, as lines of training data.

The lines are a function of the target, the settings and the shard.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from slipstream.core.errors import TrainingError
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.features import best_columns
from slipstream.train.shards import AnswerJob, DataSettings, Shard, draw_temperature
from slipstream.train.sources import Talk

_COMPACT_BELOW = 0.75
"""Rows that have ended are dropped from the batch once so small a share is still running."""
_BLOCK = 64
"""Tokens of the vocabulary that are looked at together."""
_PLACEHOLDER = "SLIPSTREAMUSER"
"""Placeholder of the user's text. No template trims or rewrites it."""
_MIN_CHARS = 8
MAX_SELF_PROMPT_TOKENS = 256
Line = dict[str, Any]
"""A document as it is written: ids "p" and "g", and the temperature "t" if one was drawn at."""


class BatchDecoder(Protocol):
    """`BatchModel`, or `NativeBatchModel`, each with a kind of cache of its own."""

    def open(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor]:
        """Return caches of the prompts and the logits [B, V] behind each one's last token."""
        ...

    def step(self, cache: Any, tokens: Tensor) -> Tensor:
        """Append a token to every row, [B]; return the logits [B, V] behind it."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Prompt (token ids) to answer at a temperature; 0 takes the likeliest token."""

    prompt: tuple[int, ...]
    temperature: float

    def __post_init__(self) -> None:
        if not self.prompt:
            raise TrainingError("a prompt to answer must hold at least 1 token")
        if not 0 <= self.temperature <= 100:
            raise TrainingError(f"the temperature is {self.temperature}, not within 0..100")


@dataclass(frozen=True, slots=True)
class EndRules:
    """Ends of answers: any of `ends`, which is kept, or `max_new_tokens`."""

    ends: frozenset[int]
    max_new_tokens: int

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise TrainingError(f"max_new_tokens is {self.max_new_tokens}, it must be at least 1")


def answers(
    model: BatchDecoder,
    requests: Sequence[AnswerRequest],
    rules: EndRules,
    generator: torch.Generator,
) -> list[list[int]]:
    """Return the answers to `requests`, in their order, decoded together.

    Every answer has random numbers of its own, so that none depends on how long others are.
    """
    cache, logits = model.open([request.prompt for request in requests])
    rows = _Rows(
        torch.arange(len(requests), device=logits.device),
        torch.tensor([request.temperature for request in requests], device=logits.device),
        torch.rand(len(requests), rules.max_new_tokens, generator=generator).to(logits.device),
    )
    out: list[list[int]] = [[] for _ in requests]
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
    """Rows that are still decoded: their numbers [B], temperatures [B] and noise [B, steps]."""

    numbers: Tensor
    temperatures: Tensor
    noise: Tensor

    def only(self, index: Tensor) -> "_Rows":
        return _Rows(self.numbers[index], self.temperatures[index], self.noise[index])


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
        probs = torch.softmax(logits[warm].float() / temperatures[warm, None], -1)
        tokens[warm] = _inverted(probs, noise[warm])
    return tokens


def _inverted(probs: Tensor, noise: Tensor) -> Tensor:
    """Return the first ids up to which `probs` [B, V] sum to more than `noise` [B] of all."""
    padded = nn.functional.pad(probs, (0, -probs.shape[1] % _BLOCK))
    blocks = padded.unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    place = noise[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, place, right=True).clamp_max(sums.shape[1] - 1)
    before = sums.gather(1, (block - 1).clamp_min(0)).where(block > 0, 0.0)
    inside = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]]
    inner = torch.searchsorted(inside.double().cumsum(-1), place - before, right=True)
    token = block * _BLOCK + inner.clamp_max(_BLOCK - 1)
    return token[:, 0].clamp_max(probs.shape[1] - 1)


@dataclass(frozen=True, slots=True)
class UserOpening:
    """Ids before the user's text, and the ids that end it."""

    prompt: tuple[int, ...]
    ends: frozenset[int]


def user_opening(
    tokenizer: TextTokenizer, *, ends: Collection[int], special: Collection[int]
) -> UserOpening:
    """Return the opening of a conversation of one message, cut where the message stands.

    The turn ends at any of `ends`, or at what the template writes behind it if that is one of
    the `special` ids. Raises `InvalidRequest` without a template and TrainingError for one that
    writes the message not just once.
    """
    parts = tokenizer.render([{"role": "user", "content": _PLACEHOLDER}]).split(_PLACEHOLDER)
    if len(parts) != 2:
        raise TrainingError("the chat template does not show where the user speaks")
    before, after = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
    if not before:
        raise TrainingError("the chat template puts nothing before the user's text")
    closing = {token for token in after[:1] if token in special}
    if not closing and not ends:
        raise TrainingError("the chat template puts no special token behind the user's text")
    return UserOpening(tuple(before), frozenset(ends) | closing)


def usable_prompts(
    turns: Sequence[Sequence[int]],
    tokenizer: TextTokenizer,
    *,
    ends: Collection[int],
    special: Collection[int],
) -> list[str]:
    """Return the texts of turns that ended by themselves, read like text, and are new; in order."""
    texts = []
    for turn in turns:
        body = turn[:-1]
        if turn and turn[-1] in ends and not any(token in special for token in body):
            texts.append(tokenizer.decode(body).strip())
    return [text for text in dict.fromkeys(texts) if _reads_like_text(text)]


def _reads_like_text(text: str) -> bool:
    """Return whether it is long enough, has letters, and is valid UTF-8 without controls."""
    if len(text) < _MIN_CHARS or not any(letter.isalpha() for letter in text):
        return False
    return all(letter.isprintable() or letter in "\n\t" for letter in text.replace("\ufffd", "\0"))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer, the ids that end an answer, and all ids that are not text."""

    tokenizer: TextTokenizer
    ends: frozenset[int]
    special: frozenset[int]


class Author:
    """Writer of the contents of shards, by a target."""

    def __init__(self, model: BatchDecoder, vocabulary: Vocabulary, settings: DataSettings) -> None:
        """The settings must be those that the shards were made with."""
        self._model = model
        self._vocabulary = vocabulary
        self._settings = settings

    def lines(self, shard: Shard) -> list[Line]:
        """Return the shard's documents: one for every answer, with all tokens before it."""
        if shard.texts:
            return [{"p": list(text), "g": []} for text in shard.texts]
        seed = shard.seed(self._settings.seed)
        generator = torch.Generator().manual_seed(seed)
        jobs: Sequence[AnswerJob] = shard.jobs
        if shard.num_self_prompts:
            jobs = self._own_jobs(shard.num_self_prompts, generator, random.Random(seed))
        lines: list[Line] = []
        rules = EndRules(self._vocabulary.ends, self._settings.max_new_tokens)
        while jobs:
            requests = [AnswerRequest(job.talk.prompt, job.temperature) for job in jobs]
            given = answers(self._model, requests, rules, generator)
            lines += [
                {"p": list(request.prompt), "g": answer, "t": request.temperature}
                for request, answer in zip(requests, given, strict=True)
            ]
            later = [self._next(job, answer) for job, answer in zip(jobs, given, strict=True)]
            jobs = [job for job in later if job is not None]
        return lines

    def _next(self, job: AnswerJob, answer: Sequence[int]) -> AnswerJob | None:
        """Return the conversation with its next turn; None when it is over or gets too long."""
        if not job.talk.turns:
            return None
        text, *rest = job.talk.turns
        turn = encode_prompt(self._vocabulary.tokenizer, text, last_token=answer[-1])
        prompt = (*job.talk.prompt, *answer, *turn)
        if len(prompt) > self._settings.sources.max_prompt_tokens:
            return None
        return AnswerJob(Talk(prompt, tuple(rest)), job.temperature)

    def _own_jobs(
        self, count: int, generator: torch.Generator, rng: random.Random
    ) -> list[AnswerJob]:
        """Let the target write `count` user turns at temperature 1; return those fit to answer."""
        words, longest = self._vocabulary, self._settings.sources.max_prompt_tokens
        opening = user_opening(words.tokenizer, ends=words.ends, special=words.special)
        rules = EndRules(opening.ends, min(longest, MAX_SELF_PROMPT_TOKENS))
        turns = answers(self._model, [AnswerRequest(opening.prompt, 1.0)] * count, rules, generator)
        texts = usable_prompts(turns, words.tokenizer, ends=opening.ends, special=words.special)
        prompts = [encode_prompt(words.tokenizer, text) for text in texts]
        return [
            AnswerJob(Talk(prompt), draw_temperature(self._settings, rng))
            for prompt in prompts
            if len(prompt) <= longest
        ]
