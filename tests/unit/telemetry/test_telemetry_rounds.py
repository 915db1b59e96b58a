"""Which rounds of a request have spans, what they say, and what engines elsewhere are told of."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from slipstream.core.errors import Unavailable
from slipstream.telemetry.metric import Telemetry
from support.telemetry.listening import Listener, parent_id, span_id
from support.telemetry.watched_rounds import PREFILL, UNSAMPLED, Script, Watched, scripts, watched

COUNTS = st.integers(0, 5)


@given(scripts(), COUNTS)
def test_engines_are_sampled_in_the_first_rounds_and_not_at_all_later(rounds, num_rounds):
    heard, request = watched(rounds, num_rounds)
    told = iter(request.engine.told)
    for index, at in enumerate(rounds):
        names = ["target.verify"] if at.draft_s is None else ["draft.propose", "target.verify"]
        for name in names:
            carrier = next(told)
            if index >= num_rounds:
                assert carrier is None
                continue
            [asked] = [span for span in heard.spans(name) if span_id(carrier) == span_of(span)]
            [around] = [span for span in heard.spans("round") if parent_id(asked) == span_of(span)]
            assert around.attributes["slipstream.round.index"] == index


def span_of(span):
    return span.context.span_id


@given(scripts(), COUNTS, st.sampled_from(["unsampled", "nobody"]))
def test_a_request_that_is_not_traced_has_no_span_but_its_rounds_are_seen(rounds, num_rounds, why):
    heard = Listener()
    telemetry = heard.telemetry if why == "unsampled" else Telemetry()
    request = Watched(telemetry, num_rounds, UNSAMPLED)
    assert request.runs(rounds) is None
    assert heard.spans() == []
    assert set(request.engine.told) == {None}
    assert [at.seconds for at in request.seen] == [at.seconds for at in rounds]


BROKEN = [{"draft_error": Unavailable("it is away")}, {"target_error": Unavailable("it is away")}]


@pytest.mark.parametrize("how", BROKEN, ids=["draft", "target"])
def test_an_error_ends_the_spans_of_its_round_as_failed(how):
    heard, request = watched([PREFILL, Script(), Script(**how)], 9)
    asked = "draft.propose" if "draft_error" in how else "target.verify"
    failed = [span for span in heard.spans() if span.status.status_code is StatusCode.ERROR]
    assert [span.name for span in failed] == [asked, "round", "request"]
    for span in failed:
        assert span.attributes["error.type"] == "Unavailable"
        assert span.status.description == "it is away"
    assert failed[1].attributes["slipstream.round.index"] == 2
    assert len(heard.spans("round")) == 3
    assert len(request.seen) == 2


@pytest.mark.parametrize("how", BROKEN, ids=["draft", "target"])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_a_round_that_is_given_up_has_ended_and_not_failed(how, error):
    heard, request = watched([PREFILL, Script(**dict.fromkeys(how, error))], 9)
    assert request.error is error
    assert len(heard.spans("round")) == 2
    assert {span.status.status_code for span in heard.spans()} == {StatusCode.UNSET}
    assert heard.span("request").attributes["error.type"] == "Cancelled"
