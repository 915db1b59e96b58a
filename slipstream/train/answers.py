"""Answers of a target to many prompts at once, and conversations of them as training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from slipstream.core.inline import finished
from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Proposal, SamplingParams, Session
from slipstream.text.prompts import encode_prompt
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.engine import LocalTarget
from slipstream.verifying.meter import StepBudget
from slipstream.verifying.request import TargetRequest
from slipstream.verifying.schedule import Schedule

Line = dict[str, Any]
"""A document as it is written: ids "p" and "g", and the temperature "t" if one was drawn at."""


@dataclass(frozen=True, slots=True)
class Talk:
    """Conversation: ids of its opening, the user's text after each answer, and the temperature of
    its answers."""

    prompt: tuple[int, ...]
    turns: tuple[str, ...] = ()
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class BulkTarget:
    """A target that answers many conversations at once, each up to any of `ends`, which is kept,
    or with `max_new_tokens`; `max_rows` are the tokens of a step."""

    engine: LocalTarget
    ends: frozenset[int]
    max_new_tokens: int
    max_rows: int

    def answers(self, talks: Sequence[Talk], random: Random) -> list[list[int]]:
        """Return the answers to the openings of `talks`, in their order, each with a seed of its
        own: none depends on the others."""
        schedule = Schedule(StepBudget(self.max_rows))
        sequences = [self._sequence(*numbered, random) for numbered in enumerate(talks)]
        for sequence in sequences:
            self._begin(sequence, schedule)
        while len(schedule):
            self.engine.step(batch := schedule.next())
            for request in (entry.request for entry in batch if entry.is_last):
                sequence, verdict = request.sequence, request.result()
                sequence.append(verdict.tokens)
                if verdict.finish_reason is None:
                    self._begin(sequence, schedule)
                else:
                    finished(self.engine.release(sequence.session_id))
        return [own.tokens[own.session.num_prompt_tokens :] for own in sequences]

    def _sequence(self, number: int, talk: Talk, random: Random) -> TokenSequence:
        sampling = SamplingParams(talk.temperature, seed=random.getrandbits(64))
        sizes = len(talk.prompt), self.max_new_tokens
        session = Session(str(number), *sizes, sampling, stop_token_ids=self.ends)
        return TokenSequence(session, talk.prompt)

    def _begin(self, sequence: TokenSequence, schedule: Schedule) -> None:
        request = TargetRequest(sequence, Proposal())
        self.engine.begin(request)
        schedule.add(request)


def conversations(
    target: BulkTarget,
    tokenizer: TextTokenizer,
    talks: Sequence[Talk],
    *,
    seed: int,
    max_prompt_tokens: int,
) -> list[Line]:
    """Return a document for every answer, with all tokens before it.

    A conversation ends before a turn with which it would exceed `max_prompt_tokens`.
    """
    random, lines = Random(seed), list[Line]()
    while talks:
        pairs = list(zip(talks, target.answers(talks, random), strict=True))
        lines += [
            {"p": list(talk.prompt), "g": answer, "t": talk.temperature} for talk, answer in pairs
        ]
        later = [_next(talk, answer, tokenizer) for talk, answer in pairs if talk.turns]
        talks = [talk for talk in later if len(talk.prompt) <= max_prompt_tokens]
    return lines


def _next(talk: Talk, answer: Sequence[int], tokenizer: TextTokenizer) -> Talk:
    text, *rest = talk.turns
    turn = encode_prompt(tokenizer, text, last_token=answer[-1])
    return Talk((*talk.prompt, *answer, *turn), tuple(rest), talk.temperature)
