"""Prompt lookup: a draft without a model, that repeats what once followed the latest tokens.

Knows token ids only. It has no law, so it serves `exact` verification, chains, and no stop policy
that asks for confidence.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.core.history import num_same
from slipstream.core.profile import Profile
from slipstream.core.request import DraftFacts
from slipstream.core.tree import TokenTree
from slipstream.core.types import Delta, Plan, Proposal, Session, Shape, StopPolicy

NGRAM = DraftFacts(
    "ngram", Profile(shape=Shape.CHAIN, stop=StopPolicy.FIXED, step_cost=0.0, max_depth=8)
)
"""What this draft says of itself."""


_ENCODING = f"utf-32-{sys.byteorder[0]}e"
MAX_TOKEN_ID = sys.maxunicode
"""Largest token id that is looked up; every vocabulary ends far below."""


@dataclass(slots=True)
class Lookup:
    """The tokens of a session, in which the latest ones are searched for.

    With tokens 1 2 3 4 2 3 and n-grams of up to 3: no 4 2 3 and no 3-gram at all occurred
    before, but 2 3 did, at the start, and 4 2 3 followed it. So the guess is 4 2 3 and, as the
    copy then runs into itself, 4 2 3 again for as long as asked.

    There is no index, which for a long prompt would take a second to build: the tokens are kept as
    the characters of a string as well, and a search of it takes microseconds.
    """

    max_n: int
    min_n: int
    tokens: list[int] = field(default_factory=list)
    _text: str = ""
    """One character for each token."""

    def append(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens. Raises `InvalidRequest` for an id that no vocabulary has."""
        self._text += _text_of(tokens)
        self.tokens += tokens

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        del self.tokens[length:]
        self._text = self._text[:length]

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the most recent longest match; [] without one."""
        position = self.latest()
        return [] if position is None else self.copy(position, count)

    def latest(self) -> int | None:
        """Position of the token that followed the most recent longest match; None without one."""
        text, size = self._text, len(self._text)
        for n in range(min(self.max_n, size), self.min_n - 1, -1):
            start = text.rfind(text[size - n :], 0, size - 1)
            if start >= 0:
                return start + n
        return None

    def copy(self, position: int, count: int) -> list[int]:
        """`count` tokens from `position` on, repeated where the copy runs into itself."""
        period = len(self.tokens) - position
        return [self.tokens[position + index % period] for index in range(count)]

    def match(self, position: int, longest: int) -> int:
        """How many tokens before `position` are those that the session ends with."""
        size = len(self.tokens)
        limit = min(longest, position)
        for length in range(limit):
            if self.tokens[position - 1 - length] != self.tokens[size - 1 - length]:
                return length
        return limit


def _text_of(tokens: Sequence[int]) -> str:
    """The string whose code points are these token ids."""
    try:
        return array("I", tokens).tobytes().decode(_ENCODING, "surrogatepass")
    except (OverflowError, UnicodeDecodeError):
        bad = next(token for token in tokens if not 0 <= token <= MAX_TOKEN_ID)
        raise InvalidRequest(
            f"prompt lookup takes token ids from 0 to {MAX_TOKEN_ID}, but got {bad}"
        ) from None


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
        same = num_same(lookup.tokens, delta)
        lookup.truncate(same)
        lookup.append(delta.tokens[same - delta.start :])
        self._lookups[session_id] = lookup
        return lookup
