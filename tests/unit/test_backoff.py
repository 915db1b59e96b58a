"""Pauses of a speculation that does not pay grow, and are short again once it has paid."""

from slipstream.core.backoff import Backoff


def pause_after_failing(backoff):
    backoff.record(0.0)
    pause = 0
    while not backoff.allows():
        pause += 1
    return pause


def test_pauses_are_short_again_once_speculation_has_paid():
    backoff = Backoff()
    backoff.record(-9.0)
    assert [pause_after_failing(backoff) for _ in range(3)][-1] > Backoff.FIRST_PAUSE
    backoff.record(1 + 4 * 9.0)
    assert backoff.gain >= 1
    backoff.record(-99.0)
    assert pause_after_failing(backoff) == 2 * Backoff.FIRST_PAUSE
