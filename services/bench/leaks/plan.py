"""Which short sessions are sent, and how each is left. Pure values that refuse nonsense."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise

from slipstream.bench.questions import Question, in_turn
from slipstream.bench.serve.plan import MAX_CONCURRENCY
from slipstream.core.errors import InvalidRequest

PARTS = 20
"""Memory is read after each of them."""
CANCEL_AFTER_S = (0.0, 0.002, 0.02)
"""When those who don't wait for a token leave: at once, while they wait for a step, or in it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One session: a question, and when its user leaves.

    `leave_after` is a number of tokens, None for the whole answer. 0 is before the first one: the
    user is gone `cancel_after_s` after asking, or when tokens come earlier than that. `drafts` asks
    for a draft in every round, paying or not.
    """

    question: Question
    leave_after: int | None = None
    cancel_after_s: float | None = None
    drafts: bool = False


@dataclass(frozen=True, slots=True)
class LeakPlan:
    """So many sessions, so many at a time, a share of which is left early."""

    questions: tuple[Question, ...]
    num_sessions: int = 5000
    concurrency: int = 8
    cancel_share: float = 0.3
    max_new_tokens: int = 8
    warmup: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_sessions", PARTS), ("max_new_tokens", 1), ("warmup", 0)):
            _require(name, getattr(self, name), least, None)
        _require("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        _require("cancel_share", self.cancel_share, 0, 1)

    @property
    def parts(self) -> list[int]:
        """How many sessions each part has."""
        ends = [self.num_sessions * part // PARTS for part in range(PARTS + 1)]
        return [end - start for start, end in pairwise(ends)]

    def visits(self) -> Iterator[Visit]:
        """All sessions in order, those of the warm-up first, without an end.

        Every other one drafts in all rounds; the same seed gives the same sessions.
        """
        rng = random.Random(self.seed)
        questions = in_turn(self.questions)
        for number in count():
            drafts = number % 2 == 1
            question = questions[number // 2 % len(questions)]
            if rng.random() >= self.cancel_share:
                yield Visit(question, drafts=drafts)
                continue
            leave_after = rng.randrange(self.max_new_tokens)
            cancel_after_s = None if leave_after else rng.choice(CANCEL_AFTER_S)
            yield Visit(question, leave_after, cancel_after_s, drafts)


def _require(name: str, value: float, least: float, most: float | None) -> None:
    limit = f"at least {least}" if most is None else f"from {least} to {most}"
    if not least <= value <= (value if most is None else most):
        raise InvalidRequest(f"{name} is {value:g}, but must be {limit}")
