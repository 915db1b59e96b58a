"""Prompt lookup: a draft without a model, that repeats what once followed the latest tokens.

Knows token ids only. It has no law, so it serves `exact` verification, chains, and no stop policy
that asks for confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.history import apply_delta
from slipstream.core.profile import Profile
from slipstream.core.request import DraftFacts
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session, Shape, StopPolicy

NGRAM = DraftFacts(
    "ngram", Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8)
)
"""What this draft says of itself."""


@dataclass(slots=True)
class Lookup:
    """The tokens of a session and where each of its n-grams went on, kept up as tokens come.

    With tokens 1 2 3 4 2 3 and n-grams of up to 3: no 4 2 3 and no 3-gram at all occurred
    before, but 2 3 did, at the start, and 4 2 3 followed it. So the guess is 4 2 3 and, as the
    copy then runs into itself, 4 2 3 again for as long as asked.
    """

    max_n: int
    min_n: int
    tokens: list[int] = field(default_factory=list)
    _ends: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Ascending positions of the tokens that followed each n-gram."""

    def append(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens; the cost does not depend on how many came before."""
        for token in tokens:
            for gram in self._suffixes():
                self._ends.setdefault(gram, []).append(len(self.tokens))
            self.tokens.append(token)

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        while len(self.tokens) > length:
            self.tokens.pop()
            for gram in self._suffixes():
                self._ends[gram].pop()
                if not self._ends[gram]:
                    del self._ends[gram]

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the most recent longest match; [] without one."""
        position = self.latest()
        return [] if position is None else self.copy(position, count)

    def latest(self) -> int | None:
        """Position of the token that followed the most recent longest match; None without one."""
        for gram in self._suffixes():
            if gram in self._ends:
                return self._ends[gram][-1]
        return None

    def copy(self, position: int, count: int) -> list[int]:
        """`count` tokens from `position` on, repeated where the copy runs into itself."""
        copied = self.tokens[position:]
        return [copied[index % len(copied)] for index in range(count)]

    def match(self, position: int, longest: int) -> int:
        """How many tokens before `position` are those that the session ends with."""
        size = len(self.tokens)
        limit = min(longest, position)
        for length in range(limit):
            if self.tokens[position - 1 - length] != self.tokens[size - 1 - length]:
                return length
        return limit

    def _suffixes(self) -> list[tuple[int, ...]]:
        """The n-grams that the tokens end with, longest first."""
        longest = min(self.max_n, len(self.tokens))
        return [tuple(self.tokens[-n:]) for n in range(longest, self.min_n - 1, -1)]


class NgramDraft:
    """A `Draft` that looks the latest tokens up in the session's own past."""

    def __init__(self, *, max_n: int = 3, min_n: int = 1) -> None:
        if not 1 <= min_n <= max_n:
            raise InvalidRequest(f"n-grams of {min_n} to {max_n} tokens: need 1 <= min_n <= max_n")
        self._max_n = max_n
        self._min_n = min_n
        self._lookups: dict[str, Lookup] = {}

    async def propose(self, session: Session, delta: Delta, plan: Plan) -> Proposal:
        """Repeat what followed the most recent occurrence of the longest known suffix."""
        if plan.shape is not Shape.CHAIN:
            raise UnsupportedCombination(f"the n-gram draft makes chains, not {plan.shape.value}")
        lookup = self._told(session.session_id, delta)
        asked = min(plan.max_depth, plan.max_nodes)
        tokens = lookup.guess(asked)
        for index, token in enumerate(tokens):
            if token in session.stop_token_ids:
                return Proposal(TokenTree.chain(tokens[: index + 1]), stopped_by="eos")
        reason = "none" if not tokens else "depth" if asked == plan.max_depth else "nodes"
        return Proposal(TokenTree.chain(tokens), stopped_by=reason)

    async def release(self, session_id: str) -> None:
        """Forget the session; unknown ids are fine."""
        self._lookups.pop(session_id, None)

    def _told(self, session_id: str, delta: Delta) -> Lookup:
        """The session's lookup once it holds exactly the tokens up to the delta's end."""
        lookup = self._lookups.get(session_id) or Lookup(self._max_n, self._min_n)
        tokens, num_same = apply_delta(lookup.tokens, delta)
        lookup.truncate(num_same)
        lookup.append(tokens[num_same:])
        self._lookups[session_id] = lookup
        return lookup
