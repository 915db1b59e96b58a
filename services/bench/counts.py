"""Rounds and drafted tokens of some answers together. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from slipstream.core.stats import SpeculationStats


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Rounds with and without a draft, drafted and accepted tokens, and rounds of lost drafts."""

    speculative: int
    plain: int
    drafted: int
    accepted: int
    fallbacks: Mapping[str, int]
    """Rounds in which no draft answered, by reason."""

    @classmethod
    def of(cls, stats: Iterable[SpeculationStats]) -> Self:
        """Count all answers together."""
        parts = list(stats)
        fallbacks: Counter[str] = Counter()
        for part in parts:
            fallbacks.update(part.fallbacks)
        return cls(
            sum(part.num_spec_steps for part in parts),
            sum(part.num_plain_steps for part in parts),
            sum(part.num_draft_tokens for part in parts),
            sum(part.num_accepted_draft_tokens for part in parts),
            dict(fallbacks),
        )

    @property
    def rounds(self) -> int:
        """Return the rounds of both kinds."""
        return self.speculative + self.plain

    @property
    def acceptance_length(self) -> float:
        """Return the tokens per speculative round, the target's own included; 1 without any."""
        return 1 + self.accepted / self.speculative if self.speculative else 1.0
