"""Giving up speculation or a draft's session while it does not pay. Counts rounds."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from slipstream.core.row_costs import Average


@dataclass(eq=False, slots=True)
class FormerGains:
    """Gains of former requests of one kind, which the next ones begin with."""

    share: Average = field(default_factory=lambda: Average(1.0, num_values=1, weight=0.05))
    """Their gains over what was expected of each; one of many rounds counts as a value."""
    num_left: int = 0
    """Rounds that were left of the last one's pause."""
    has_paid: bool = False
    """True once any round gained something."""


GainHistory = Callable[[Hashable], FormerGains]
"""Returns the gains of former requests of a kind."""


class Backoff:
    """Turns speculation off while it does not pay, and tries again as often as that may cost.

    The gain of a round is its tokens over its time, beside those of rounds without a draft; where
    the average of it, which begins with former requests', is clearly below 1, these are faster.
    Near 1 speculation goes on: sessions that share steps wait for each other, so that some of them
    giving up is worse than either.
    """

    FIRST_GAIN = 1.3
    PRIOR_ROUNDS, MOST_PRIOR_ROUNDS = 4, 12
    """Rounds that the first gain counts for: without former requests, and behind many of them."""
    WEIGHT = 0.05
    """Weight of one round in the running average: small, as a round brings one token or many."""
    TOLERANCE = 0.96
    TRY_SHARE = 0.01
    """Share of the time until the next try that the last one may have lost."""
    NUM_VAIN, FIRST_PAUSE = 2, 4
    """Rounds without a gain, where there never was one, before the first pause, which is short."""

    def __init__(self, former: FormerGains, *, tolerance: float = TOLERANCE) -> None:
        """`tolerance` is the average below which speculation pauses."""
        self._former, self._tolerance = former, tolerance
        self._total, self._num = 0.0, 0
        self.expect(self.FIRST_GAIN)

    @property
    def gain(self) -> float:
        """Average of tokens per round over cost per round, the last ones counting more."""
        return self._gain.value

    def expect(self, gain: float) -> None:
        """Begin with this gain, as far as former requests had what was expected of them."""
        self._expected, self._lost, share = gain, math.inf, self._former.share
        num_rounds = min(self.PRIOR_ROUNDS - 1 + share.num_values, self.MOST_PRIOR_ROUNDS)
        self._gain = Average(share.value * gain, num_values=num_rounds, weight=self.WEIGHT)
        self.num_left = 0
        """Rounds without a draft that are left of a pause."""
        if self.gain < self._tolerance:
            self._pause(self.gain)
            self.num_left = self.num_left if share.num_values == 1 else self._former.num_left
        self._lost = 0.0

    def record(self, gain: float, opening: float = 0.0) -> None:
        """Take in a round's gain; `opening` is what it took beside, in plain rounds."""
        self._total, self._num = self._total + gain, self._num + 1
        self._lost += 1 / max(gain, self.TRY_SHARE) - 1 + opening
        self._gain.record(gain)
        self._former.has_paid |= gain >= 1
        num_vain = 0 if self._former.has_paid else self._num
        if num_vain == self.NUM_VAIN and self.gain >= self._tolerance:
            self.num_left = self.FIRST_PAUSE
        elif gain < 1 and (self.gain < self._tolerance or num_vain > self.NUM_VAIN):
            self._pause(min(gain, self.gain), opening)

    def end(self) -> None:
        """Leave what was learnt to the next request."""
        self._former.num_left = self.num_left
        if self._num:
            count = self._num / (self._num + self.MOST_PRIOR_ROUNDS)
            self._former.share.record(self._total / self._num / self._expected, count)

    def _pause(self, gain: float, opening: float = 0.0) -> None:
        lost = min(1 / max(gain, self.TRY_SHARE) - 1 + opening, self._lost, 1 / self.TRY_SHARE**2)
        self._lost, self.num_left = 0.0, max(math.ceil(lost / self.TRY_SHARE), 1)

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
