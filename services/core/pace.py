"""Tokens over the time of a plain round, on average. Knows no clock: it is given times."""

from slipstream.core.average import Average


class Pace:
    """How fast a request goes: tokens that become final in the time of a plain round.

    Tokens and times are averaged apart, so that long rounds count for as long as they take.
    """

    WEIGHT = 0.08
    """Of a round in the long run."""

    def __init__(self, first: float, *, num_rounds: int = 3) -> None:
        """`first` is what is assumed before any round, and counts for so many of them."""
        self._tokens = Average(first, num_values=num_rounds, weight=self.WEIGHT)
        self._cost = Average(1.0, num_values=num_rounds, weight=self.WEIGHT)

    @property
    def value(self) -> float:
        """Return the average, the last rounds counting more."""
        return self._tokens.value / self._cost.value

    def record(self, tokens: float, cost: float) -> None:
        """Take in a round that brought so many tokens in so many plain rounds' time."""
        self._tokens.record(tokens)
        self._cost.record(cost)
