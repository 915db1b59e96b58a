"""Measures whether drafting while the target verifies pays. Knows no clock."""

from slipstream.core.row_costs import RequestPace


class OverlapGain:
    """Compares rounds of one draft with overlap and without, of all requests, phase by phase.

    What counts is tokens by time. Where draft and target share cores, or others wait for the
    draft, overlap makes rounds longer; where a draft is far away it spares the wait for it.
    """

    PHASE = 32
    """Rounds that are alike."""
    LONGEST_PAUSE = 32
    """Phases until the slower way is tried again; doubles up to this."""
    BETTER = 1.03
    """Times the pace without overlap that is clearly more."""
    WEIGHT = 0.01

    def __init__(self) -> None:
        self._off, self._on = (RequestPace(1.0, num_rounds=0, weight=self.WEIGHT) for _ in range(2))
        self.is_on = False
        """True if the next round is to overlap."""
        self._is_trial = False
        self._left = self.PHASE
        self._rest = self._pause = 1

    def record(self, num_tokens: int, cost: float, *, is_on: bool) -> None:
        """Take in a round that asked the draft, of so many tokens in the time of `cost` plain
        rounds, and whether it did so with overlap."""
        (self._on if is_on else self._off).record(num_tokens, cost)
        self._left -= 1
        if self._left == 0:
            self._left = self.PHASE
            self._turn()

    def _turn(self) -> None:
        """Choose the way of the next phase: the better one, or the other one for a trial."""
        pays = self._on.value > self.BETTER * self._off.value
        if self._is_trial:
            has_changed = pays is self.is_on
            self._pause = 1 if has_changed else min(2 * self._pause, self.LONGEST_PAUSE)
            self._rest, self._is_trial, self.is_on = self._pause, False, pays
            return
        self._rest -= 1
        self._is_trial = self._rest == 0
        self.is_on = not self.is_on if self._is_trial else pays
