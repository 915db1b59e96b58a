"""Reading traces: which lines, which request, what hangs together, and how much is explained."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.traces import last_trace, read_spans, trace_of
from support.telemetry.sample_traces import GENERATE, START_NS, Recorder, write_trace

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SECOND_NS = 10**9


def request(to, *spans, at=(0, 100), say=None):
    """The trace of a request with these spans of the router, each a name and two times."""
    about = {"gen_ai.response.id": "r"} | (say or {})
    top = to.span("router", GENERATE, at, kind=SpanKind.SERVER, say=about)
    for name, times in spans:
        to.span("router", name, times, top)
    return trace_of(read_spans(to.directory), "r")


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    write_trace(tmp_path)
    before = read_spans(tmp_path)
    file = tmp_path / "router.jsonl"
    whole = file.read_text().splitlines()[0]
    with file.open("a") as more:
        more.write(whole[: len(whole) // 2])
    assert read_spans(tmp_path) == before


def test_a_last_line_without_its_line_break_counts_when_it_is_whole(tmp_path):
    write_trace(tmp_path)
    before = read_spans(tmp_path)
    for file in tmp_path.iterdir():
        file.write_text(file.read_text().rstrip("\n"))
    assert read_spans(tmp_path) == before


BROKEN = [
    "no JSON",
    "[1]",
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "12", "spanId": "34"}]}]}]}',
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}',
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named_with_its_file_and_number(tmp_path, line):
    (tmp_path / "router.jsonl").write_text(f"\n{{}}\n{line}\n")
    with pytest.raises(InvalidRequest, match=r"line 3 of .*router\.jsonl holds no traces") as error:
        read_spans(tmp_path)
    assert "\n" not in str(error.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="there is no directory"):
        read_spans(tmp_path / "none")


def test_what_collectors_write_otherwise_is_read_alike(tmp_path):
    write_trace(tmp_path)
    before = read_spans(tmp_path)
    for file in tmp_path.iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(upper(line)) + "\n" for line in lines))
    assert read_spans(tmp_path) == before


def upper(value):
    """Ids in capitals, numbers as numbers, and a field that is not known yet."""
    if isinstance(value, list):
        return [upper(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {
        key: item.upper() if key.endswith("Id") else int(item) if key == "intValue" else upper(item)
        for key, item in value.items()
    }
    return {"sinceThen": 1, **changed}


def test_reading_needs_no_sdk():
    code = (
        "import sys; import slipstream.telemetry.traces; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    path = {"PYTHONPATH": str(ROOT / ".dev")}
    assert subprocess.run([sys.executable, "-c", code], env=path, check=False).returncode == 0


def test_a_request_is_found_by_its_id_and_the_last_is_the_one_that_ended_last(tmp_path):
    write_trace(tmp_path, "late", start_ns=START_NS + SECOND_NS)
    write_trace(tmp_path, "early")
    spans = read_spans(tmp_path)
    assert last_trace(spans).request.attributes["gen_ai.response.id"] == "late"
    early = trace_of(spans, "early")
    assert early.request.attributes["gen_ai.response.id"] == "early"
    assert len(early.spans) == len(spans) // 2
    assert trace_of(spans, "never") is None
    assert last_trace([]) is None


def test_of_several_attempts_the_last_one_is_meant(tmp_path):
    write_trace(tmp_path, "r", start_ns=START_NS + SECOND_NS)
    write_trace(tmp_path, "r")
    assert trace_of(read_spans(tmp_path), "r").request.start_ns == START_NS + SECOND_NS


def test_what_else_a_caller_asked_for_in_its_trace_is_not_the_requests(tmp_path):
    to = Recorder(tmp_path)
    app = to.span("app", "work", (0, 200))
    for name, at in (("a", (0, 90)), ("b", (100, 190))):
        say = {"gen_ai.response.id": name}
        top = to.span("router", GENERATE, at, app, kind=SpanKind.SERVER, say=say)
        to.span("router", f"part of {name}", at, top)
    found = trace_of(read_spans(tmp_path), "b")
    assert [span.name for span in found.spans] == ["work", GENERATE, "part of b"]


def test_a_span_that_is_written_twice_is_there_once(tmp_path):
    write_trace(tmp_path)
    whole = last_trace(read_spans(tmp_path))
    for file in list(tmp_path.iterdir()):
        (tmp_path / f"copy-of-{file.name}").write_bytes(file.read_bytes())
    assert last_trace(read_spans(tmp_path)) == whole


def test_spans_that_claim_to_be_their_own_ancestors_hang_nothing_up(tmp_path):
    write_trace(tmp_path)
    spans = read_spans(tmp_path)
    request = next(span for span in spans if span.is_request)
    child = next(span for span in spans if span.parent_id == request.span_id)
    turned = [replace(span, parent_id=child.span_id) if span is request else span for span in spans]
    trace = last_trace(turned)
    assert 0 < trace.explained() <= 1
    assert trace.orphans() == ()


def test_a_whole_trace_has_one_root_and_no_orphans(tmp_path):
    write_trace(tmp_path)
    trace = last_trace(read_spans(tmp_path))
    assert [span.name for span in trace.tops()] == ["chat smollm2-135m"]
    assert trace.orphans() == ()


def test_spans_of_a_part_that_is_missing_are_orphans(tmp_path):
    write_trace(tmp_path)
    (tmp_path / "client.jsonl").unlink()
    trace = last_trace(read_spans(tmp_path))
    assert trace.orphans() == (trace.request,)


def test_stages_explain_their_sum(tmp_path):
    said = {"slipstream.stage.draft_ms": 20.0, "slipstream.stage.prefill_ms": 30.5}
    trace = request(Recorder(tmp_path), say=said | {"slipstream.stage.new_ms": 1})
    assert [stage.name for stage in trace.stages()] == ["prefill", "draft", "new"]
    assert trace.explained() == pytest.approx(0.515, abs=1e-12)


def test_spans_that_overlap_count_once_and_only_within_the_request(tmp_path):
    spans = (("a", (-10, 10)), ("b", (5, 20)), ("c", (12, 14)), ("d", (90, 130)), ("e", (150, 160)))
    trace = request(Recorder(tmp_path), *spans)
    assert trace.covered_ns() == 30_000_000
    assert trace.explained() == 0.3


def test_what_another_process_did_explains_nothing_of_the_routers_time(tmp_path):
    to = Recorder(tmp_path)
    top = to.span(
        "router", GENERATE, (0, 100), kind=SpanKind.SERVER, say={"gen_ai.response.id": "r"}
    )
    called = to.span("router", "call", (0, 40), top, kind=SpanKind.CLIENT)
    served = to.span("target", "call", (0, 100), called, kind=SpanKind.SERVER)
    to.span("target", "run", (0, 100), served)
    assert trace_of(read_spans(tmp_path), "r").explained() == 0.4


def test_what_spans_and_stages_tell_of_the_same_time_is_not_counted_twice(tmp_path):
    said = {"slipstream.stage.verify_ms": 60.0}
    trace = request(Recorder(tmp_path), ("target.verify", (0, 50)), say=said)
    assert trace.explained() == 0.6
    longer = request(Recorder(tmp_path / "longer"), ("target.verify", (0, 70)), say=said)
    assert longer.explained() == 0.7


def test_nothing_is_explained_by_more_than_everything(tmp_path):
    trace = request(Recorder(tmp_path), say={"slipstream.stage.draft_ms": 250.0})
    assert trace.explained() == 1.0
    assert request(Recorder(tmp_path / "none"), at=(0, 0)).explained() == 1.0
