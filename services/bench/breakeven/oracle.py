"""A draft that knows the answers, and is right exactly as often, and late exactly as long, as told.

Stands behind the draft's port; the target, the loop and all between are the real ones. Knows no
model and no clock: waiting is an argument.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from slipstream.core.errors import InvalidRequest
from slipstream.core.history import apply_delta
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.sizing.making import expected_tokens

Wait = Callable[[float], Awaitable[None]]
"""Lets so many seconds pass."""
Answers = Mapping[tuple[int, ...], Sequence[int]]
"""What plain decoding says, by the prompt."""


@dataclass(frozen=True, slots=True)
class Luck:
    """Whether a drafted token is right: with the chance `acceptance`, by itself.

    A function of seed, session and position, so that whoever asks again hears the same.
    """

    acceptance: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise InvalidRequest(f"acceptance is {self.acceptance:g}, but must be from 0 to 1")

    def is_right(self, session_id: str, position: int) -> bool:
        """Of the token at that position of the session's output."""
        drawn = random.Random(f"{self.seed} {session_id} {position}").random()
        return drawn < self.acceptance


def tokens_per_round(
    luck: Luck, session_ids: Sequence[str], *, depth: int, num_tokens: int
) -> float:
    """What rounds of these sessions make final on average, until each has so many tokens.

    The first of them is the prompt's own.
    """
    tokens = rounds = 0
    for session_id in session_ids:
        at = 1
        while at <= num_tokens:
            right = (luck.is_right(session_id, at + ahead) for ahead in range(depth))
            kept = sum(1 for _ in takewhile(bool, right))
            at, rounds = at + kept + 1, rounds + 1
        tokens += at - 1
    return tokens / rounds


def typical(
    luck: Luck, session_ids: Sequence[str], *, depth: int, num_tokens: int, draws: int = 16
) -> Luck:
    """Of some draws the one whose rounds make most nearly as many tokens as they do on average.

    A short run may be lucky, and then it says little of the time that rounds take.
    """
    expected = expected_tokens(luck.acceptance, depth)

    def surprise(drawn: Luck) -> float:
        of = tokens_per_round(drawn, session_ids, depth=depth, num_tokens=num_tokens)
        return abs(of - expected)

    first = luck.seed * draws
    return min((replace(luck, seed=first + number) for number in range(draws)), key=surprise)


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds that a proposal takes: for each drafted token, and on its way."""

    token_s: float = 0.0
    way_s: float = 0.0

    def of(self, num_tokens: int) -> float:
        """A proposal of so many tokens."""
        return num_tokens * self.token_s + self.way_s


class OracleDraft:
    """`core.ports.Draft` that proposes chains out of known answers.

    Behind a token that is wrong all others are: a draft that reads its own mistake goes on from it.
    """

    def __init__(
        self, answers: Answers, luck: Luck, delay: Delay, *, vocab_size: int, wait: Wait
    ) -> None:
        """A wrong token is another one of `vocab_size`."""
        self._answers = answers
        self._luck = luck
        self._delay = delay
        self._vocab_size = vocab_size
        self._wait = wait
        self._held: dict[str, list[int]] = {}

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """See `core.ports.Draft.propose`. Raises `InvalidRequest` for a prompt without answer."""
        tokens, _ = apply_delta(self._held.get(session.session_id, []), delta)
        self._held[session.session_id] = tokens
        answer = self._answer(tokens[: session.num_prompt_tokens])
        start = len(tokens) - session.num_prompt_tokens
        count = min(plan.max_depth, plan.max_nodes, len(answer) - start)
        chain = self._chain(session.session_id, answer, range(start, start + max(count, 0)))
        await self._wait(self._delay.of(len(chain)))
        return Proposal(TokenTree.chain(chain), stopped_by="depth")

    async def release(self, session_id: str) -> None:
        """See `core.ports.Draft.release`."""
        self._held.pop(session_id, None)

    def _answer(self, prompt: Sequence[int]) -> Sequence[int]:
        answer = self._answers.get(tuple(prompt))
        if answer is None:
            raise InvalidRequest(f"no answer is known to a prompt of {len(prompt)} tokens")
        return answer

    def _chain(self, session_id: str, answer: Sequence[int], positions: range) -> list[int]:
        chain: list[int] = []
        is_right = True
        for at in positions:
            is_right = is_right and self._luck.is_right(session_id, at)
            chain.append(answer[at] if is_right else (answer[at] + 1) % self._vocab_size)
        return chain
