"""What is said of the tokens of one request's output, on its way beside them. Pure; knows not what.

Tokens are sent later than they become final, and those behind a stop string never are.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Trail(Generic[T]):
    """One item for each token; None for tokens of which nothing is known."""

    def __init__(self, *, num_past: int, num_sent: int) -> None:
        """`num_past` tokens were final before, of which nothing is known; `num_sent` were sent."""
        self._items: list[T | None] = [None] * num_past
        self._num_sent = num_sent

    def add(self, items: Sequence[T | None]) -> None:
        """Of tokens that follow those before."""
        self._items += items

    def send(self, num_tokens: int) -> tuple[T | None, ...]:
        """Of the next tokens that are sent."""
        start = self._num_sent
        self._num_sent += num_tokens
        return tuple(self._items[start : self._num_sent])
