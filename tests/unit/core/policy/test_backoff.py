"""A draft that is not asked is left, and one that gains again is asked."""

from slipstream.core.policy.backoff import Backoff, DraftUse, FormerGains


def rounds_until_it_ends(opening, *, pause, remaining=10**6):
    """How many rounds do without the draft before its session ends; at most a thousand."""
    use = DraftUse()
    use.answers(opening, is_late=False)
    for num_apart in range(1000):
        if use.ends(1 + max(pause - num_apart, 0), remaining, use.opening):
            assert not use.ends(pause, remaining, use.opening)
            return num_apart
    return None


def test_a_session_ends_at_the_start_of_a_pause_beside_which_opening_it_anew_costs_little():
    assert rounds_until_it_ends(2.0, pause=100) == 0
    assert rounds_until_it_ends(2.0, pause=60) == 99  # of copies, or without a token budget
    assert rounds_until_it_ends(0.0, pause=10) == DraftUse.SHORTEST - 1
    assert rounds_until_it_ends(50.0, pause=900, remaining=800) == 0  # it is never asked again
    assert rounds_until_it_ends(50.0, pause=900) is None


def test_a_session_that_is_asked_between_never_ends_and_one_that_was_not_asked_has_no_end():
    use = DraftUse()
    assert not use.ends(1000, 1, 0.0)
    for _ in range(100):
        use.answers(0.0, is_late=False)
        for num_rounds in (0, *[1] * (DraftUse.SHORTEST - 1)):
            assert not use.ends(num_rounds, 1000, use.opening)


def test_waits_while_a_session_opens_count_as_the_cost_of_that_and_the_first_not_as_a_failure():
    use = DraftUse()
    assert [use.answers(waited, is_late=True) for waited in (5, 3)] == [False, True]
    assert use.answers(1.0, is_late=False) and use.answers(7.0, is_late=True)
    assert use.opening == 9.0
    assert use.ends(1000, 1000, use.opening)
    use.answers(2.0, is_late=False)
    assert use.opening == 2.0


def num_drafted(former, gains):
    """How many of a request's 50 rounds are drafted, whose gains come in turn."""
    backoff, count = Backoff(former), 0
    for _ in range(50):
        if backoff.allows():
            backoff.record(gains[count % len(gains)])
            count += 1
    backoff.end()
    return count


def test_short_requests_that_gain_are_soon_drafted_however_many_before_them_lost():
    for lost in [(0.5,), (0.7,), (0.9,), (0.5, 1.1), (0.9, 1.0)]:
        former = FormerGains()
        before = [num_drafted(former, lost) for _ in range(60)]
        after = [num_drafted(former, (0.9, 2.0)) for _ in range(10)]
        assert sum(before[30:]) * sum(1 / gain - 1 for gain in lost) / len(lost) < 0.011 * 30 * 50
        assert after[6:] == [50] * 4
