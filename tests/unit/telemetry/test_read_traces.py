"""Reading traces: which lines, which request, what hangs together, and how much is explained."""

import json
from dataclasses import replace

import pytest
from opentelemetry.trace import SpanKind

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.traces import find_trace, read_spans
from support.telemetry.sample_traces import GENERATE, Recorder, write_trace


def test_a_last_line_counts_when_it_is_whole_and_not_while_it_is_being_written(tmp_path):
    write_trace(tmp_path)
    before = read_spans(tmp_path)
    file = tmp_path / "router.jsonl"
    whole = file.read_text().rstrip("\n")
    for end in ("", "\n" + whole.splitlines()[0][:99]):
        file.write_text(whole + end)
        assert read_spans(tmp_path) == before


SPAN = {"traceId": "1", "spanId": "2", "startTimeUnixNano": 1, "endTimeUnixNano": 2}
ENDLESS = {"key": "k", "value": {"intValue": float("inf")}}
BROKEN = [
    "no JSON",
    "[1]",
    *(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
        for span in (
            *({}, {"traceId": "12", "spanId": "34"}),
            *({**SPAN, name: ["1"]} for name in ("traceId", "spanId", "parentSpanId")),
            *({**SPAN, "endTimeUnixNano": float("inf")}, {**SPAN, "attributes": [ENDLESS]}),
        )
    ),
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named_with_its_file_and_number(tmp_path, line):
    (tmp_path / "router.jsonl").write_text(f"\n{{}}\n{line}\n")
    with pytest.raises(InvalidRequest, match=r"line 3 of .*router\.jsonl holds no traces") as error:
        read_spans(tmp_path)
    assert "\n" not in str(error.value)


def test_other_requests_in_the_trace_of_a_caller_are_not_part_of_a_request(tmp_path):
    to = Recorder(tmp_path)
    app = to.span("app", "work", (0, 200))
    for name, at in (("a", (0, 90)), ("b", (100, 190))):
        say = {"gen_ai.response.id": name}
        top = to.span("router", GENERATE, at, app, kind=SpanKind.SERVER, say=say)
        to.span("router", f"part of {name}", at, top)
    spans = find_trace(read_spans(tmp_path), "b").spans
    assert [span.name for span in spans] == ["work", GENERATE, "part of b"]


def test_a_circle_of_spans_is_read_once(tmp_path):
    write_trace(tmp_path)
    spans = read_spans(tmp_path)
    request = next(span for span in spans if span.is_request)
    child = next(span for span in spans if span.parent_id == request.span_id)
    turned = [replace(span, parent_id=child.span_id) if span is request else span for span in spans]
    trace = find_trace(turned, None)
    assert sorted(span.span_id for span in trace.spans) == sorted(
        span.span_id for span in spans if span.parent_id is not None
    )
    assert trace.orphans == ()
