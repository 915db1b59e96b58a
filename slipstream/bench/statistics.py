"""Figures that benchmarks share: medians and ratios, rounds, and token identity.

Pure; independent of what is measured.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self, TypeVar

from slipstream.core.request.stats import SpeculationStats

Key = TypeVar("Key")


def paired(
    subject: Sequence[float | None], base: Sequence[float | None]
) -> dict[str, float] | None:
    """Return median, lowest and highest of subject over base, repeat by repeat; None without a
    pair."""
    found = [a / b for a, b in zip(subject, base, strict=True) if a is not None and b]
    if not found:
        return None
    return {"median": median(found), "low": min(found), "high": max(found)}


def quotient(value: float | None, by: float | None) -> float | None:
    """Return value / by; None where either is missing or `by` is 0."""
    return value / by if value is not None and by else None


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Rounds with and without a draft, drafted and accepted tokens of some answers together."""

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


def first_difference(tokens: Sequence[Any], reference: Sequence[Any]) -> int | None:
    """Return the index of the first token that differs or is missing on one side, if any."""
    if tuple(tokens) == tuple(reference):
        return None
    pairs = enumerate(zip(tokens, reference, strict=False))
    shorter = min(len(tokens), len(reference))
    return next((index for index, (a, b) in pairs if a != b), shorter)


def differences(
    outputs: Iterable[tuple[Key, Sequence[Any]]], expected: Mapping[Key, Sequence[Any]]
) -> dict[Key, int]:
    """Return the position where each output leaves what is expected; the earliest of repeats."""
    found: dict[Key, int] = {}
    for key, tokens in outputs:
        position = first_difference(tokens, expected[key])
        if position is not None:
            found[key] = min(position, found.get(key, position))
    return found


def positions(of: Mapping[int | str, int]) -> list[dict[str, int | str]]:
    """Return differences as a file holds them."""
    return [{"question_id": name, "position": position} for name, position in of.items()]
