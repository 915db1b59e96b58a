"""A running average. Pure; knows nothing of what is averaged."""


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
