"""Recordings: what rounds there can be, random ones, and those of traces."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.formula import MeanRound, mean_round
from slipstream.sizing.recording import (
    DeviceTimes,
    RandomRounds,
    RecordedRequest,
    Recording,
    RoundShape,
    recording_of,
)
from slipstream.telemetry.traces import Span, SpanKind

TIMES = DeviceTimes(((1, 0.04), (32, 0.044)), 0.01, 0.001, 0.002, 0.003, 0.004)


def test_devices_take_time():
    for wrong in ({"level_s": 0.0}, {"call_s": -1.0}, {"verify": ((2, 0.1), (3, 0.1))}):
        with pytest.raises(InvalidRequest):
            replace(TIMES, **wrong)


def test_the_last_token_of_an_answer_is_never_drafted():
    assert RoundShape(4, 9, 3).within(4) == RoundShape(3, 3, 3)
    assert RoundShape(4, 9, 3).within(1) == RoundShape(0, 0, 0)
    assert RoundShape(4, 9, 3).within(5) == RoundShape(4, 9, 3)


def test_random_answers_have_the_tokens_asked_for_and_the_expected_acceptance():
    rounds = RandomRounds(0.75, 4, 101, 5)
    requests = rounds.requests(200, 0)
    assert {request.num_tokens for request in requests} == {101}
    # (1 - a^(d + 1)) / (1 - a): Leviathan et al. 2023, eq. 1.
    expected = (1 - 0.75**5) / (1 - 0.75)
    assert mean_round(Recording(TIMES, requests)).final == pytest.approx(expected, rel=0.03)
    assert rounds.requests(200, 0) == requests != rounds.requests(200, 1)


def test_the_mean_round_is_the_average_of_all():
    requests = (
        RecordedRequest(10, (RoundShape(4, 6, 2), RoundShape(2, 2, 2))),
        RecordedRequest(5, (RoundShape(0, 0, 0),)),
    )
    assert mean_round(Recording(TIMES, requests)) == MeanRound(2, 8 / 3, 1 + 4 / 3, 5)
    with pytest.raises(InvalidRequest, match="no round"):
        mean_round(Recording(TIMES, (RecordedRequest(10, ()),)))


class Story:
    """Spans of a request, one by one."""

    def __init__(self):
        self.spans = []
        self._now_ms = 0.0

    def span(self, name, parent, start_ms, end_ms, kind=SpanKind.CLIENT, **attributes):
        span = Span(
            "t", f"s{len(self.spans)}", parent, name, kind, "slipstream-router", "1",
            round(start_ms * 1e6), round(end_ms * 1e6), attributes,
        )  # fmt: skip
        self.spans.append(span)
        return span.span_id

    def round(self, index, *, drafted, accepted, selected="first", kind="speculative"):
        """20 ms of drafting, 40 of verifying, and a millisecond for each call and between."""
        start = self._now_ms
        self._now_ms = end = start + 62 if drafted else start + 41
        values = {
            "slipstream.round.index": index,
            "slipstream.round.kind": kind,
            "slipstream.round.drafted": drafted,
            "slipstream.round.accepted": accepted,
            "slipstream.round.final": accepted + 1,
            "slipstream.round.selected": selected,
        }
        at = self.span("round", "request", start, end, SpanKind.INTERNAL, **values)
        if drafted:
            reply = {"slipstream.reply.engine_ms": 20.0, "slipstream.proposal.depth": drafted}
            self.span("draft.propose", at, start, start + 21, **reply)
        reply = {"slipstream.reply.engine_ms": 40.0}
        verify = self.span("target.verify", at, end - 41, end, **reply)
        rows = {"slipstream.batch.rows": 1 + drafted, "slipstream.batch.sessions": 1}
        self.span("target.verify", verify, end - 40, end, SpanKind.SERVER, **rows)
        self._now_ms += 1


def spans():
    story = Story()
    story.round(0, drafted=0, accepted=0, kind="prefill")
    story.round(1, drafted=4, accepted=3)
    story.round(2, drafted=0, accepted=0, kind="plain")
    story.round(3, drafted=2, accepted=0)
    story.round(9, drafted=4, accepted=0, selected="slowest")
    return story.spans


def test_traces_have_rounds_and_their_times():
    recording = recording_of(spans())
    [request] = recording.requests
    assert request.rounds == tuple(RoundShape(*at) for at in ((4, 4, 3), (0, 0, 0), (2, 2, 0)))
    times = recording.times
    assert times.level_s == pytest.approx(0.0075)  # the median of 5 and 10 ms
    assert times.call_s == pytest.approx(0.001)
    assert times.router_s == pytest.approx(0.001)
    assert times.curve().seconds(5) == pytest.approx(0.04)


def test_a_span_that_was_written_twice_counts_once():
    assert recording_of(spans() * 2) == recording_of(spans())


def test_traces_without_drafts_are_no_recording():
    story = Story()
    story.round(0, drafted=0, accepted=0, kind="prefill")
    story.round(1, drafted=0, accepted=0, kind="plain")
    for spans in ([], story.spans):
        with pytest.raises(InvalidRequest, match="no round in which something was drafted"):
            recording_of(spans)
