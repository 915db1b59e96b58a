"""Metrics are those of the catalog, and come to what rounds come to."""

import asyncio
import logging
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.row_costs import Offer
from slipstream.core.types import FinishReason, Proposal, ReplyTiming, Verdict
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import MetricKind, sampled
from slipstream.telemetry.round_metrics import MAX_POSITION
from support.telemetry.listening import Listener
from support.telemetry.watched_rounds import PREFILL, Script, scripts, told


def test_names_are_unique():
    assert set(Counter(metric.name for metric in catalog.CATALOG).values()) == {1}


@pytest.mark.parametrize("metric", catalog.CATALOG, ids=lambda metric: metric.name)
def test_a_metric_has_a_name_a_unit_a_sentence_and_buckets_in_order(metric):
    assert re.fullmatch(r"(gen_ai|slipstream)(\.[a-z_]+)+", metric.name)
    assert metric.unit in {"s", "By", "1"} or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert re.fullmatch(r"[A-Z][^\n]*\.", metric.text)
    assert metric.roles
    assert set(metric.roles) <= {"router", "target", "draft", "http"}
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len(set(metric.attributes)) == len(metric.attributes)
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-5, 50))))
def test_a_total_is_the_highest_that_was_reported_and_never_goes_down(told):
    heard, highest = Listener(), Counter()
    for state, total in told:
        heard.telemetry.instruments.total(catalog.TARGET_TIME, total, {"state": state})
        highest[state] = max(highest[state], total)
    for state in {state for state, total in told if total >= 0}:
        assert heard.point(catalog.TARGET_TIME, state=state).value == highest[state]


def test_an_instrument_says_what_the_catalog_says_of_it():
    heard = Listener()
    instruments = heard.telemetry.instruments
    for metric in catalog.CATALOG:
        if metric.kind is MetricKind.HISTOGRAM:
            instruments.record(metric, 1)
            assert heard.point(metric).explicit_bounds == metric.buckets
        elif metric.kind is MetricKind.GAUGE:
            instruments.put(metric, 1)
            assert heard.point(metric).value == 1
        else:
            instruments.add(metric)
            assert heard.point(metric).value == 1


def counts(heard, metric):
    """A counter's values by that of its attribute; those of 0 left out."""
    found = {key: point.value for key, point in heard.points(metric).items()}
    return {key[0][1] if key else "": value for key, value in found.items() if value}


def reached(rounds, count_of):
    """How many rounds came as far as each position."""
    wanted = Counter()
    for at in rounds:
        wanted.update(str(position + 1) for position in range(min(count_of(at), MAX_POSITION)))
    return wanted


@given(scripts())
def test_metrics_of_rounds_are_what_counting_them_one_by_one_comes_to(rounds):
    heard = told(rounds)
    speculative = [at for at in rounds if at.depth]
    kinds = Counter("speculative" if at.depth else "plain" for at in rounds[1:])
    kinds["prefill"] = len(rounds[:1])
    assert counts(heard, catalog.ROUNDS) == kinds
    final = sum(at.accepted + 1 for at in rounds)
    assert counts(heard, catalog.TOKENS_FINAL) == {"": final}
    drafted, accepted = sum(at.depth for at in rounds), sum(at.accepted for at in rounds)
    assert counts(heard, catalog.TOKENS_DRAFTED).get("", 0) == drafted
    assert counts(heard, catalog.TOKENS_ACCEPTED).get("", 0) == accepted
    assert counts(heard, catalog.STOPS).get("depth", 0) == len(speculative)
    assert counts(heard, catalog.POSITION_DRAFTED) == reached(speculative, lambda at: at.depth)
    assert counts(heard, catalog.POSITION_ACCEPTED) == reached(speculative, lambda at: at.accepted)


def test_rounds_without_a_draft_and_prompts_that_were_known_are_counted():
    lost = Script(depth=0, proposal=Proposal(fallback="draft lost"), verdict=Verdict((1,), 0))
    heard = told([Script(None, depth=0, verdict=Verdict((1,), 0, num_cached=7)), lost, lost])
    assert counts(heard, catalog.FALLBACKS) == {"draft lost": 2}
    assert counts(heard, catalog.TOKENS_CACHED) == {"": 7}
    assert counts(heard, catalog.ROUNDS) == {"prefill": 1, "plain": 2}


async def test_the_state_is_reported_at_once_and_at_the_end():
    heard, began, value = Listener(), asyncio.Event(), 1

    def sample(instruments):
        instruments.put(catalog.WAITING, value)
        began.set()

    async with sampled(heard.telemetry.instruments, sample):
        await began.wait()
        assert heard.point(catalog.WAITING).value == 1
        value = 2
    assert heard.point(catalog.WAITING).value == 2


async def test_a_service_does_not_fall_over_what_it_says_of_itself(caplog):
    def sample(instruments):
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, "slipstream.telemetry"):
        async with sampled(Listener().telemetry.instruments, sample):
            pass
    assert "metrics could not be sampled" in caplog.text


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


def test_whether_speculation_pays_is_reported_from_the_rounds():
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
