"""Whether speculation pays, from rounds alone: what they bring against what they cost. Pure."""

from dataclasses import dataclass

_WEIGHT = 0.02
"""Of one round: averages are over about the last fifty."""


@dataclass(slots=True)
class _Average:
    """A moving one; the first values count alike, so that it begins with their mean."""

    value: float = 0.0
    count: int = 0

    def take(self, value: float) -> None:
        self.count += 1
        self.value += max(_WEIGHT, 1 / self.count) * (value - self.value)


class Gain:
    """Moving averages over the rounds of all requests of a router."""

    def __init__(self) -> None:
        self._length = _Average()
        self._speculative_s = _Average()
        self._plain_s = _Average()
        self._verify_s = _Average()

    @property
    def length(self) -> float | None:
        """Final tokens of a speculative round; None before the first one."""
        return self._length.value if self._length.count else None

    @property
    def plain_s(self) -> float | None:
        """How long a plain round takes; None while nobody has said."""
        return self._plain_s.value if self._plain_s.count else None

    @property
    def break_even(self) -> float | None:
        """Length from which on speculative rounds bring more tokens per second than plain ones.

        None before the first one. While nobody has said how long a plain round takes, it counts as
        long as a verification, than which it is no longer: the least that it can be.
        """
        plain_s = self._plain_s.value or self._verify_s.value
        if not (self._speculative_s.count and plain_s):
            return None
        return self._speculative_s.value / plain_s

    def speculative(self, *, num_final: int, seconds: float, verify_s: float) -> None:
        """A round in which something was drafted, and how much of it was the verification."""
        self._length.take(num_final)
        self._speculative_s.take(seconds)
        self._verify_s.take(verify_s)

    def plain(self, seconds: float) -> None:
        """How long a plain round takes, measured or as the target has it for the present load."""
        self._plain_s.take(seconds)
