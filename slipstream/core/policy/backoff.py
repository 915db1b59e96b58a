"""Giving up speculation or a draft's session while it does not pay. Counts rounds."""

import math

from slipstream.core.row_costs import Average


class Backoff:
    """Turns speculation off while it does not pay, and tries again as often as that may cost.

    The gain of a round is its tokens over its time, beside those of rounds without a draft; where
    the average of it is clearly below 1, these are faster. Near 1 speculation goes on: sessions
    that share steps wait for each other, so that some of them giving up is worse than either.
    """

    FIRST_GAIN = 1.3
    PRIOR_ROUNDS = 3
    """Rounds that the first gain, which is only assumed, counts for."""
    WEIGHT = 0.08
    """Weight of one round in the running average: small, as a round brings one token or many."""
    TOLERANCE = 0.96
    TRY_SHARE = 0.01
    """Share of the time until the next try that the last one may have lost. One that paid is
    followed by another at once."""

    def __init__(self) -> None:
        self._gain = Average(self.FIRST_GAIN, num_values=self.PRIOR_ROUNDS, weight=self.WEIGHT)
        self.num_left = 0
        """Rounds without a draft that are left of a pause."""

    @property
    def gain(self) -> float:
        """Average of tokens per round over cost per round, the last ones counting more."""
        return self._gain.value

    def expect(self, gain: float) -> None:
        """Begin with this gain, before any round."""
        self._gain.value = gain
        self._pause_after(gain)

    def record(self, gain: float) -> None:
        self._gain.record(gain)
        self._pause_after(gain)

    def _pause_after(self, gain: float) -> None:
        if self.gain < self.TOLERANCE and gain < 1:
            lost = 1 / max(min(gain, self.gain), self.TRY_SHARE) - 1
            self.num_left = math.ceil(lost / self.TRY_SHARE)

    def allows(self) -> bool:
        """Return whether to speculate in the round now planned."""
        if self.num_left == 0:
            return True
        self.num_left -= 1
        return False


class DraftUse:
    """Ends the session that a request has at a draft, its memory and its streams, where so many
    rounds do without it that opening it anew costs little beside them, or all that are left do."""

    SHORTEST = 32
    """Fewest rounds without the draft: no session comes and goes all the time."""
    OPENING_SHARE = 0.02
    """Share of these rounds that opening the session anew may take."""

    def __init__(self) -> None:
        self.is_asked = self.is_open = False
        """True once the draft was asked, and once it answered, in the session that it has now."""
        self.opening = 0.0
        """Plain rounds of waits until it had answered, when it was opened last."""
        self._num_apart = 0

    def answers(self, waited: float, *, is_late: bool) -> bool:
        """Take in a wait of so many plain rounds; return whether it says what the draft gains. The
        first one, if in vain, says only that the session opens."""
        is_first = not self.is_asked
        if not self.is_open:
            self.opening = waited + (0.0 if is_first else self.opening)
        self.is_asked, self.is_open = True, self.is_open or not is_late
        return not (is_first and is_late)

    def ends(self, num_rounds: int, remaining: int, opening: float) -> bool:
        """Return, once, whether to end the session, which `num_rounds` from now on are known to do
        without, with `remaining` tokens left, where opening it takes `opening` plain rounds."""
        before, self._num_apart = self._num_apart, self._num_apart + 1 if num_rounds else 0
        enough = max(min(opening / self.OPENING_SHARE, remaining), self.SHORTEST)
        ends = self.is_asked and num_rounds > 0 and before + num_rounds >= enough
        if ends:
            self.is_asked = self.is_open = False
        return ends
