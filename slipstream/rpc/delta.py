"""Deltas: the tokens of a sequence that became final since the stream's last message."""

from dataclasses import dataclass

from slipstream.core.errors import SessionOutOfSync
from slipstream.core.sequence import TokenSequence


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
