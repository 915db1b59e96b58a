"""What came of a simulated or a real crowd, in the same words. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.errors import InvalidRequest

WINDOW = (0.1, 0.9)
"""Part of a run that throughput is taken from: neither its beginning nor its end is typical."""


@dataclass(slots=True)
class Answer:
    """One request's, with the times at which so many of its tokens came."""

    asked_s: float
    marks: list[tuple[float, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """In all."""
        return sum(count for _, count in self.marks)

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.marks[0][0] - self.asked_s

    @property
    def per_token_s(self) -> float:
        """Seconds for each token after those that came first."""
        later = self.num_tokens - self.marks[0][1]
        return (self.marks[-1][0] - self.marks[0][0]) / later if later else 0.0


def tokens_per_s(answers: Sequence[Answer]) -> float:
    """Of everybody together, within `WINDOW` of the time from the first question to the last word.

    Tokens of a mark that lies within count as if they had come evenly since the mark before.
    """
    if not answers:
        raise InvalidRequest("nobody was answered")
    start = min(at.asked_s for at in answers)
    whole_s = max(at.marks[-1][0] for at in answers) - start
    low, high = (start + share * whole_s for share in WINDOW)
    total = 0.0
    for answer in answers:
        before = answer.asked_s
        for at, count in answer.marks:
            within = min(at, high) - max(before, low)
            total += count * max(within, 0.0) / (at - before) if at > before else 0.0
            before = at
    return total / (high - low)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
