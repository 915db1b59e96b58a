"""Tokens over the time of a plain round, on average. Knows no clock: it is given times."""


class Average:
    """The mean of what was recorded, the last values counting more in the long run."""

    def __init__(self, first: float, *, num_values: int, weight: float) -> None:
        """`first` is what is assumed before any value, and counts for `num_values` of them;
        `weight` is that of a value in the long run."""
        self.value = first
        self._num_values = num_values
        self._weight = weight

    def record(self, value: float) -> None:
        """Take in one more value."""
        self._num_values += 1
        self.value += max(self._weight, 1 / self._num_values) * (value - self.value)


class RequestPace:
    """Pace of a request: tokens that become final in the time of a plain round.

    Tokens and times are averaged apart, so that long rounds count for as long as they take.
    """

    WEIGHT = 0.08
    """Of a round in the long run."""

    def __init__(self, first: float, *, num_rounds: int = 3, weight: float = WEIGHT) -> None:
        """`first` is what is assumed before any round, and counts for so many of them; `weight` is
        that of a round in the long run."""
        self._tokens = Average(first, num_values=num_rounds, weight=weight)
        self._cost = Average(1.0, num_values=num_rounds, weight=weight)

    @property
    def value(self) -> float:
        """Return the average, the last rounds counting more."""
        return self._tokens.value / self._cost.value

    def record(self, tokens: float, cost: float) -> None:
        """Take in a round that brought so many tokens in so many plain rounds' time."""
        self._tokens.record(tokens)
        self._cost.record(cost)
