"""Whether speculation pays, as a router tells it of its rounds."""

import pytest

from slipstream.core.policy.row_costs import Offer
from slipstream.core.types import FinishReason, Proposal, ReplyTiming, Verdict
from slipstream.telemetry import catalog
from slipstream.telemetry.round_metrics import SpeculationGain
from support.telemetry.watched_rounds import PREFILL, Script, told


def gains(*rounds):
    """Length and break-even after a prefill and these rounds; None where nothing is told."""
    heard = told([PREFILL, *rounds])
    pair = (catalog.SPECULATION_LENGTH, catalog.SPECULATION_BREAK_EVEN)
    return tuple(next((at.value for at in heard.points(metric).values()), None) for metric in pair)


PLAIN = Script(None, verify_s=2, depth=0, accepted=0)


def offered(round_s, engine_s=None, *, verify_s=4):
    """A round of 8 seconds, after which the target says how long a plain one takes."""
    timing = None if engine_s is None else ReplyTiming(engine_s=engine_s)
    verdict = Verdict((0, 1), 1, offer=Offer(4, round_s=round_s), timing=timing)
    return Script(draft_s=8 - verify_s, verify_s=verify_s, verdict=verdict)


def test_whether_speculation_pays_is_told_of_what_rounds_show():
    assert gains() == (None, None)
    assert gains(PLAIN) == (None, None)
    assert gains(PLAIN, Script(draft_s=2, verify_s=4, accepted=2)) == (3, 3)
    assert gains(Script(draft_s=2, verify_s=4, accepted=2)) == (3, 1.5), "as long as a verification"
    assert gains(offered(2.0)) == (2, 4)
    assert gains(offered(2.0, 2.0)) == (2, 2), "2 s there, and 2 s on the way"
    assert gains(offered(2.0, 9.0)) == (2, 4)


def test_neither_a_last_round_nor_waiting_for_a_lost_draft_says_whether_speculation_pays():
    last = Script(verdict=Verdict((1,), 0, FinishReason.STOP))
    lost = Script(draft_s=9, verify_s=2, depth=0, proposal=Proposal(fallback="draft lost"))
    assert gains(last) == (None, None)
    seen = Script(draft_s=2, verify_s=4, accepted=2)
    assert gains(lost, seen) == gains(PLAIN, seen)


def test_averages_begin_with_the_mean_and_then_forget_slowly():
    gain = SpeculationGain()
    for num_final in (1, 2, 6):
        gain.record_speculative(num_final=num_final, seconds=2.0, verify_s=1.0)
    assert gain.length == pytest.approx(3)
    for _ in range(47):
        gain.record_speculative(num_final=3, seconds=2.0, verify_s=1.0)
    gain.record_speculative(num_final=53, seconds=2.0, verify_s=1.0)
    assert gain.length == pytest.approx(3 + 50 * 0.02)
    assert gain.break_even == 2.0
    gain.record_plain(0.5)
    assert gain.break_even == 4.0
