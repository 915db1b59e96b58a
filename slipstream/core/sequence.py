"""A running request as both ports see it: its parameters, and its tokens, which only grow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import SessionOutOfSync
from slipstream.core.types import FinishReason, Session


class TokenSequence:
    """A request's parameters and its final tokens: those of the prompt, then the output.

    Tokens are appended and never changed, so an engine reads each of them once. A request that
    goes back to an earlier token makes another sequence.
    """

    __slots__ = ("session", "tokens")

    def __init__(self, session: Session, tokens: Iterable[int] = ()) -> None:
        self.session = session
        self.tokens = list(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def session_id(self) -> str:
        """The id under which engines hold the request's keys and values."""
        return self.session.session_id

    def append(self, tokens: Iterable[int]) -> None:
        """Make tokens final."""
        self.tokens += tokens


class SyncedTokens:
    """The tokens of a session that an engine holds, kept equal to those of a sequence."""

    __slots__ = ("_num_read", "_sequence", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self._sequence: TokenSequence | None = None
        self._num_read = 0

    def num_same(self, sequence: TokenSequence) -> int:
        """Return how many leading tokens are those of the sequence.

        Of a sequence that was taken before, only the tokens that came since are compared.
        """
        known = self._num_read if self._sequence is sequence else 0
        return common_prefix(self.tokens, sequence.tokens, start=known)

    def take(self, sequence: TokenSequence) -> int:
        """Hold the sequence's tokens; return how many leading ones were held before.

        The tokens may be appended to afterwards, by what the engine itself made final.
        """
        same = self.num_same(sequence)
        self.tokens[same:] = sequence.tokens[same:]
        self._sequence, self._num_read = sequence, len(self.tokens)
        return same


def common_prefix(one: Sequence[Any], other: Sequence[Any], *, start: int = 0) -> int:
    """Return how many leading items of both are equal, the first `start` of which are known to be.

    >>> common_prefix([5, 6, 7], [5, 6, 9])
    2
    """
    end = min(len(one), len(other))
    if one[start:end] == other[start:end]:
        return end
    return next((index for index in range(start, end) if one[index] != other[index]), end)


def finish(
    session: Session, num_output_tokens: int, tokens: Sequence[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """The `tokens` of a round that survive, and why the request ends there, if it does.

    `num_output_tokens` were final before them. The first stop token ends the request and is
    kept; so does reaching `max_tokens`. Nothing after the end survives, the bonus token
    included. A stop token in the last place allowed counts as a stop.
    """
    room = session.max_tokens - num_output_tokens
    for index, token in enumerate(tokens[: max(room, 0)]):
        if token in session.stop_token_ids:
            return tuple(tokens[: index + 1]), FinishReason.STOP
    if len(tokens) >= room:
        return tuple(tokens[: max(room, 0)]), FinishReason.LENGTH
    return tuple(tokens), None


@dataclass(frozen=True, slots=True)
class Delta:
    """Final tokens from position `start` on. What was sent below `start` stays."""

    start: int
    tokens: tuple[int, ...]

    @classmethod
    def since(cls, num_sent: int, sequence: TokenSequence) -> "Delta":
        """Return what the sequence has after its first `num_sent` tokens."""
        start = min(num_sent, len(sequence))
        return cls(start, tuple(sequence.tokens[start:]))

    @property
    def end(self) -> int:
        """Return how many tokens the sequence has after this delta."""
        return self.start + len(self.tokens)

    def applied(self, sequence: TokenSequence) -> TokenSequence:
        """Return the receiver's sequence after the delta.

        It is the same object where tokens are only appended, and another one where the sender went
        back. Raises `SessionOutOfSync` when the delta starts above the tokens received.
        """
        held = sequence.tokens
        if not 0 <= self.start <= len(held):
            raise SessionOutOfSync(
                f"the delta starts at position {self.start}, but {len(held)} tokens are held"
            )
        again = len(held) - self.start
        if tuple(held[self.start :]) == self.tokens[:again]:
            sequence.append(self.tokens[again:])
            return sequence
        return TokenSequence(sequence.session, (*held[: self.start], *self.tokens))
