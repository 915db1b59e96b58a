"""Tokens whose fate is that of a recording: which guess is right is written in the token itself.

Every place of every recorded answer has a token id of its own, and what follows it is the next id.
So engines need no memory to agree on what is right, whoever asks. Knows no engine and no wire.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from slipstream.sizing.recording import RecordedRequest, Recording, Round

WRONG = 0
"""What a draft guesses where the target is not to agree."""
_FIRST = 1


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a draft says behind a place: tokens in a row, as many as were recorded."""

    tokens: tuple[int, ...]


class Script:
    """The answers of a recording. The last token of a prompt says which of them is meant."""

    def __init__(self, recording: Recording) -> None:
        self._requests = recording.requests
        lengths = [request.num_tokens + 1 for request in recording.requests]
        self._starts = list(accumulate(lengths, initial=_FIRST))
        self._rounds = [_by_place(request) for request in recording.requests]

    @property
    def vocab_size(self) -> int:
        """Token ids that there are."""
        return self._starts[-1]

    @property
    def max_depth(self) -> int:
        """The most levels that are drafted in a round."""
        return max(at.depth for request in self._requests for at in request.rounds)

    def prompt(self, number: int) -> tuple[int, ...]:
        """What a recorded request is asked by."""
        return (self._starts[number],) * self._requests[number].num_prompt_tokens

    def answer(self, number: int) -> tuple[int, ...]:
        """What comes of it."""
        start = self._starts[number]
        return tuple(range(start + 1, start + 1 + self._requests[number].num_tokens))

    def following(self, token: int) -> int:
        """What the target says behind a token."""
        if token == WRONG or token + 1 in self._starts:
            return WRONG
        return token + 1

    def guesses(self, token: int) -> Guesses:
        """What the draft says behind the last token of a round; a wrong one elsewhere."""
        number = bisect_right(self._starts, token) - 1
        at = None
        if token >= _FIRST and number < len(self._requests):
            at = self._rounds[number].get(token - self._starts[number])
        if at is None or not at.depth:
            return Guesses((WRONG,))
        right = range(token + 1, token + 1 + at.accepted)
        return Guesses((*right, *((WRONG,) * (at.depth - at.accepted))))


def _by_place(request: RecordedRequest) -> dict[int, Round]:
    """Rounds by the number of tokens that were final before them."""
    ends = accumulate((at.accepted + 1 for at in request.rounds), initial=1)
    return dict(zip(ends, request.rounds, strict=False))
