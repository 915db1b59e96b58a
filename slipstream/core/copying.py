"""Copies of known text in a proposal: where they come from, and their limits. Values."""

import math
from dataclasses import dataclass
from enum import StrEnum

from slipstream.core.errors import InvalidRequest


class CopySource(StrEnum):
    """Source of a proposed token that no draft model proposed."""

    LOOKUP = "lookup"
    """Earlier in the text of its own session."""
    STORE = "ngram-store"
    """In the n-gram store of the model."""
    GRAMMAR = "grammar"
    """Forced by the grammar of the request."""


@dataclass(frozen=True, slots=True)
class Copying:
    """Limits of the copies in a round.

    Matches of at least `shortest` tokens count, and a copied path has up to `max_depth` tokens.
    The draft is spared where the next token is a copy with a probability of `alone` or more.
    """

    shortest: int
    max_depth: int
    alone: float = math.inf

    def __post_init__(self) -> None:
        if self.shortest < 1 or self.max_depth < 1:
            raise InvalidRequest(
                f"copying {self.max_depth} tokens behind matches of {self.shortest}: both must be"
                " at least 1"
            )
        if not self.alone >= 0:
            raise InvalidRequest(f"alone is {self.alone}, but must be 0 or more")
