"""Recordings: what rounds there can be, files of them, and what traces say of them."""

from dataclasses import replace

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.fitting import StepSeen, fitted
from slipstream.sizing.making import Guess, expected_tokens, made
from slipstream.sizing.recording import (
    Devices,
    RecordedRequest,
    Recording,
    Round,
    Work,
    read_recording,
    write_recording,
)
from slipstream.sizing.traces import recording_of
from slipstream.telemetry.traces import Span, SpanKind

DEVICES = Devices(((1, 0.04), (32, 0.044)), 0.01, 0.001, 0.002, 16, 0.003, 0.004)


def test_a_file_holds_the_whole_recording(tmp_path):
    recording = made(Guess(0.7, 3, 20, 9), DEVICES, num_requests=3)
    write_recording(tmp_path / "rounds.jsonl", recording)
    assert read_recording(tmp_path / "rounds.jsonl") == recording
    assert [path.name for path in tmp_path.iterdir()] == ["rounds.jsonl"]


@pytest.mark.parametrize(
    "text", ["", "{}\n", "no json\n", '{"devices": {"verify": [[1, 0.1]], "level_s": 1}}\n']
)
def test_a_file_that_holds_none_is_refused_by_name(tmp_path, text):
    path = tmp_path / "rounds.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="holds no recording"):
        read_recording(path)
    with pytest.raises(InvalidRequest, match="can't be read"):
        read_recording(tmp_path / "none")


@pytest.mark.parametrize("numbers", [(1, 0, 0), (2, 1, 0), (2, 2, 3), (0, 1, 0), (-1, 0, 0)])
def test_a_round_that_keeps_more_than_it_drafts_is_none(numbers):
    with pytest.raises(InvalidRequest, match="no round drafts"):
        Round(*numbers)


def test_devices_take_time():
    for wrong in ({"level_s": 0.0}, {"wire_s": -1.0}, {"verify": ((2, 0.1), (3, 0.1))}):
        with pytest.raises(InvalidRequest):
            replace(DEVICES, **wrong)


def test_the_last_token_of_an_answer_is_never_drafted():
    assert Round(4, 9, 3).within(4) == Round(3, 3, 3)
    assert Round(4, 9, 3).within(1) == Round(0, 0, 0)
    assert Round(4, 9, 3).within(5) == Round(4, 9, 3)


def test_made_answers_have_the_tokens_asked_for_and_the_expected_acceptance():
    guess = Guess(0.75, 4, 101, 5)
    recording = made(guess, DEVICES, num_requests=200)
    assert {request.num_tokens for request in recording.requests} == {101}
    assert recording.work().final == pytest.approx(guess.work().final, rel=0.03)
    assert made(guess, DEVICES) == made(guess, DEVICES)
    assert made(guess, DEVICES) != made(guess, DEVICES, seed=1)


def test_expected_tokens_are_those_of_the_closed_form():
    assert expected_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1


def test_work_is_the_average_round():
    requests = (
        RecordedRequest(10, (Round(4, 6, 2), Round(2, 2, 2))),
        RecordedRequest(5, (Round(0, 0, 0),)),
    )
    assert Recording(DEVICES, requests).work() == Work(2, 8 / 3, 1 + 4 / 3, 5)


def test_a_line_is_fitted_through_steps_of_all_sizes():
    steps = [
        StepSeen(rows * count, count, 0.03 + 0.001 * (rows * count - 1) + 0.002 * (count - 1))
        for rows in (1, 5, 9)
        for count in (1, 1, 1)
    ]
    points, session_s = fitted(steps)
    assert session_s == 0
    assert points[0] == (1, pytest.approx(0.03))
    assert points[1][1] == pytest.approx(0.03 + 0.001 * (points[1][0] - 1))


def test_steps_of_one_size_cost_what_they_cost():
    points, session_s = fitted([StepSeen(5, 1, 0.04), StepSeen(5, 1, 0.05), StepSeen(5, 1, 9.0)])
    assert [seconds for _, seconds in points] == [0.05, 0.05]
    assert session_s == 0


class Story:
    """Spans of a request, one by one."""

    def __init__(self):
        self.spans = []
        self._now_ms = 0.0

    def span(self, name, parent, start_ms, end_ms, kind=SpanKind.CLIENT, **said):
        span = Span(
            "t", f"s{len(self.spans)}", parent, name, kind, "slipstream-router", "1",
            round(start_ms * 1e6), round(end_ms * 1e6), said,
        )  # fmt: skip
        self.spans.append(span)
        return span.span_id

    def round(self, index, *, drafted, accepted, selected="first", kind="speculative"):
        """20 ms of drafting, 40 of verifying, and a millisecond for each call and between."""
        start = self._now_ms
        self._now_ms = end = start + 62 if drafted else start + 41
        said = {
            "slipstream.round.index": index,
            "slipstream.round.kind": kind,
            "slipstream.round.drafted": drafted,
            "slipstream.round.accepted": accepted,
            "slipstream.round.final": accepted + 1,
            "slipstream.round.selected": selected,
        }
        at = self.span("round", "request", start, end, SpanKind.INTERNAL, **said)
        if drafted:
            reply = {"slipstream.reply.engine_ms": 20.0, "slipstream.proposal.depth": drafted}
            self.span("draft.propose", at, start, start + 21, **reply)
        reply = {"slipstream.reply.engine_ms": 40.0}
        verify = self.span("target.verify", at, end - 41, end, **reply)
        rows = {"slipstream.batch.rows": 1 + drafted, "slipstream.batch.sessions": 1}
        self.span("target.verify", verify, end - 40, end, SpanKind.SERVER, **rows)
        self._now_ms += 1


def story():
    told = Story()
    told.round(0, drafted=0, accepted=0, kind="prefill")
    told.round(1, drafted=4, accepted=3)
    told.round(2, drafted=0, accepted=0, kind="plain")
    told.round(3, drafted=2, accepted=0)
    told.round(9, drafted=4, accepted=0, selected="slowest")
    return told.spans


def test_traces_tell_rounds_and_what_they_took():
    recording = recording_of(story())
    [request] = recording.requests
    assert request.rounds == (Round(4, 4, 3), Round(0, 0, 0), Round(2, 2, 0))
    devices = recording.devices
    assert devices.level_s == pytest.approx(0.0075)  # the median of 5 and 10 ms
    assert devices.wire_s == pytest.approx(0.001)
    assert devices.router_s == pytest.approx(0.001)
    assert devices.curve().seconds(5) == pytest.approx(0.04)


def test_a_span_that_was_written_twice_counts_once():
    assert recording_of(story() * 2) == recording_of(story())


def test_traces_without_drafts_are_no_recording():
    told = Story()
    told.round(0, drafted=0, accepted=0, kind="prefill")
    told.round(1, drafted=0, accepted=0, kind="plain")
    for spans in ([], told.spans):
        with pytest.raises(InvalidRequest, match="no round in which something was drafted"):
            recording_of(spans)
