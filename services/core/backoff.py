"""Giving up speculation while it does not pay. Knows no clock: it counts rounds."""


class Backoff:
    """Turns speculation off while it does not pay, and tries again at growing intervals.

    The gain of a round is its tokens over its time in plain rounds; a running average of it
    below 1 means that plain decoding is faster.
    """

    WEIGHT = 0.2
    FIRST_GAIN = 2.0
    FIRST_PAUSE = 4
    LONGEST_PAUSE = 64

    def __init__(self) -> None:
        self._gain = self.FIRST_GAIN
        self._pause = self.FIRST_PAUSE
        self._plain_rounds_left = 0

    @property
    def gain(self) -> float:
        """Running average of tokens per round over cost per round."""
        return self._gain

    def record(self, gain: float) -> None:
        """Take in a round that speculated."""
        self._gain += self.WEIGHT * (gain - self._gain)
        if self._gain >= 1:
            self._pause = self.FIRST_PAUSE
            return
        self._plain_rounds_left = self._pause
        self._pause = min(2 * self._pause, self.LONGEST_PAUSE)

    def allows(self) -> bool:
        """Whether to speculate in the round now planned."""
        if self._plain_rounds_left == 0:
            return True
        self._plain_rounds_left -= 1
        return False
