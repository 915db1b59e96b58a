"""What n-grams are looked up in: the narrow interface between trees of copies and what they copy.

Knows token ids only: neither files, nor stores, nor drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class CopySource(StrEnum):
    """Where a proposed token was found, where no draft model proposed it."""

    LOOKUP = "lookup"
    """Earlier in the text of its own session."""
    STORE = "ngram-store"
    """In the n-gram store of the model."""
    LEARNED = "learned"
    """In the text of earlier requests."""
    GRAMMAR = "grammar"
    """Forced by the grammar of the request."""


LATEST = 16
"""Tokens of a session that its n-grams may look at."""


class NgramStore(Protocol):
    """N-grams that were counted once, with the probabilities of what follows them."""

    def after(self, latest: Sequence[int]) -> Sequence[tuple[int, float]]:
        """Return tokens that may follow, with probabilities that add up to 1 at most.

        `latest` are up to `LATEST` tokens, the newest one first.
        """
        ...


class TextMemory(Protocol):
    """Texts of earlier requests."""

    def after(self, latest: Sequence[int]) -> tuple[int, int] | None:
        """Return the token behind the best earlier match, and how many tokens matched; or None.

        `latest` are up to `LATEST` tokens, the newest one first.
        """
        ...


@dataclass(frozen=True, slots=True)
class NgramSources:
    """What a request may copy from, beside its own text."""

    store: NgramStore | None = None
    memory: TextMemory | None = None
