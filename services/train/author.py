"""What a shard holds: the target's answers, turn by turn, as lines of training data.

The lines are a function of the target, the settings and the shard. Knows nothing of files.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.models.batch import BatchModel
from slipstream.text.prompts import encode_prompt, encode_turn
from slipstream.text.tokenizer import TextTokenizer
from slipstream.train.generate import Ask, EndRules, answers
from slipstream.train.selfprompt import usable_prompts, user_opening
from slipstream.train.shards import DataSettings, Job, Shard, draw_temperature
from slipstream.train.sources import Talk

_MAX_SELF_PROMPT_TOKENS = 256

Line = dict[str, Any]
"""A document as it is written: ids "p" and "g", and the temperature "t" if one was drawn at."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer, the ids that end an answer, and all ids that are not text."""

    tokenizer: TextTokenizer
    ends: frozenset[int]
    special: frozenset[int]


class Author:
    """Has a target write shards."""

    def __init__(self, model: BatchModel, vocabulary: Vocabulary, settings: DataSettings) -> None:
        """The settings must be those that the shards were made with."""
        self._model = model
        self._vocabulary = vocabulary
        self._settings = settings

    def lines(self, shard: Shard) -> list[Line]:
        """The shard's documents: one for every answer, with all that was said before it."""
        if shard.texts:
            return [{"p": list(text), "g": []} for text in shard.texts]
        seed = shard.seed(self._settings.seed)
        generator = torch.Generator().manual_seed(seed)
        jobs: Sequence[Job] = shard.jobs
        if shard.num_self_prompts:
            jobs = self._own_jobs(shard.num_self_prompts, generator, random.Random(seed))
        lines: list[Line] = []
        rules = EndRules(self._vocabulary.ends, self._settings.max_new_tokens)
        while jobs:
            asks = [Ask(job.talk.prompt, job.temperature) for job in jobs]
            given = answers(self._model, asks, rules, generator)
            lines += [
                {"p": list(ask.prompt), "g": answer, "t": ask.temperature}
                for ask, answer in zip(asks, given, strict=True)
            ]
            later = [self._next(job, answer) for job, answer in zip(jobs, given, strict=True)]
            jobs = [job for job in later if job is not None]
        return lines

    def _next(self, job: Job, answer: Sequence[int]) -> Job | None:
        """The conversation with its next turn; None when it is over or gets too long."""
        if not job.talk.turns:
            return None
        said, *rest = job.talk.turns
        turn = encode_turn(self._vocabulary.tokenizer, said, last_token=answer[-1])
        prompt = (*job.talk.prompt, *answer, *turn)
        if len(prompt) > self._settings.sources.max_prompt_tokens:
            return None
        return Job(Talk(prompt, tuple(rest)), job.temperature)

    def _own_jobs(self, count: int, generator: torch.Generator, rng: random.Random) -> list[Job]:
        """Of `count` user turns that the target writes at temperature 1, those fit to answer."""
        words, longest = self._vocabulary, self._settings.sources.max_prompt_tokens
        opening = user_opening(words.tokenizer, ends=words.ends, special=words.special)
        rules = EndRules(opening.ends, min(longest, _MAX_SELF_PROMPT_TOKENS))
        turns = answers(self._model, [Ask(opening.prompt, 1.0)] * count, rules, generator)
        texts = usable_prompts(turns, words.tokenizer, ends=opening.ends, special=words.special)
        prompts = [encode_prompt(words.tokenizer, text) for text in texts]
        return [
            Job(Talk(prompt), draw_temperature(self._settings, rng))
            for prompt in prompts
            if len(prompt) <= longest
        ]
