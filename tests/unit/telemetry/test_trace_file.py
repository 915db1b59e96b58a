"""Trace files: what the SDK exports is read again, by any collector too; bounded, and whole."""

import base64
import json
import stat
import threading
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, StatusCode

from slipstream.core.errors import InvalidRequest
from slipstream.telemetry.trace_file import FileSpanExporter, otlp_json
from slipstream.telemetry.traces import read_spans
from support.telemetry.sample_traces import write_trace

VALUES = {
    "text": "ä\n\x1b[31m<b>\ud800".encode("utf-8", "replace").decode(),
    "flag": False,
    "count": -(2**63),
    "share": 0.1,
    "endless": float("inf"),
    "none": float("-inf"),
    "list": ("a", "b"),
    "numbers": (1, 2),
}


def made_spans():
    """A span with one of everything, and the spans before it."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "s"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("scope", "1", "schema", {"of": "scope"})
    with tracer.start_as_current_span("above", kind=SpanKind.PRODUCER) as above:
        links = [Link(above.get_span_context(), {"why": 1})]
        with tracer.start_as_current_span("below", None, SpanKind.CLIENT, VALUES, links) as span:
            span.add_event("event", {"at": 1.5}, 17)
            span.set_status(StatusCode.ERROR, "it broke")
    with provider.get_tracer("other").start_as_current_span("alone", kind=SpanKind.CONSUMER):
        pass
    return kept.get_finished_spans()


def in_base64(value):
    """OTLP/JSON has ids in hex, where Protobuf's own JSON has bytes in base64."""
    if isinstance(value, list):
        return [in_base64(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = {"traceId", "spanId", "parentSpanId"}
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode() if key in ids else in_base64(item)
        for key, item in value.items()
    }


def test_a_collector_reads_the_same_message_as_over_the_wire():
    spans = made_spans()
    line = json.loads(json.dumps(otlp_json(encode_spans(spans))))
    read = json_format.ParseDict(in_base64(line), trace_pb2.TracesData())
    assert read == trace_pb2.TracesData(resource_spans=encode_spans(spans).resource_spans)


def test_what_was_exported_is_what_is_read(tmp_path):
    exported = {span.context.span_id: span for span in write_trace(tmp_path, error="no").spans}
    read = {int(span.span_id, 16): span for span in read_spans(tmp_path)}
    assert read.keys() == exported.keys()
    for key, span in read.items():
        made = exported[key]
        assert int(span.trace_id, 16) == made.context.trace_id
        assert (span.name, span.kind) == (made.name, made.kind.name.lower())
        assert span.parent_id == (made.parent and f"{made.parent.span_id:016x}")
        assert (span.start_ns, span.end_ns) == (made.start_time, made.end_time)
        assert span.attributes == dict(made.attributes)
        assert span.service == made.resource.attributes["service.name"]
        assert span.status == made.status.status_code.name.lower()
        assert span.error == made.status.description


def test_a_full_file_makes_room_and_one_before_it_is_kept(tmp_path):
    spans = made_spans()
    size = len(json.dumps(otlp_json(encode_spans(spans)), separators=(",", ":"))) + 1
    exporter = FileSpanExporter(tmp_path, "router", max_bytes=3 * size)
    sizes = []
    for _ in range(10):
        exporter.export(spans)
        sizes.append([path.stat().st_size // size for path in sorted(tmp_path.iterdir())])
    assert sizes[:4] == [[1], [2], [3], [3, 1]]
    assert sizes[4:] == [[3, 2], [3, 3], [3, 1], [3, 2], [3, 3], [3, 1]]
    assert {path.name for path in tmp_path.iterdir()} == {"router.jsonl", "router.1.jsonl"}


def test_many_writers_share_a_file_and_no_line_is_torn(tmp_path):
    spans = made_spans()
    size = len(json.dumps(otlp_json(encode_spans(spans)), separators=(",", ":"))) + 1

    def write():
        exporter = FileSpanExporter(tmp_path, "router", max_bytes=40 * size)
        for _ in range(10):
            exporter.export(spans)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_spans(tmp_path)) == 40 * len(spans)


def test_what_a_killed_process_left_half_written_goes_with_the_next_line(tmp_path):
    exporter = FileSpanExporter(tmp_path, "router")
    exporter.export(made_spans())
    with (tmp_path / "router.jsonl").open("a") as file:
        file.write('{"resourceSpans": [{"resou')
    exporter.export(made_spans())
    assert len(read_spans(tmp_path)) == 2 * len(made_spans())


def test_only_who_wrote_them_can_read_traces(tmp_path):
    directory = tmp_path / "a" / "traces"
    FileSpanExporter(directory, "router").export(made_spans())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "router.jsonl").stat().st_mode) == 0o600


def test_a_directory_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"can't be written to .*/router\.jsonl \(Not a d"):
        FileSpanExporter(tmp_path / "file" / "traces", "router")
    with pytest.raises(InvalidRequest, match="max_bytes is 0"):
        FileSpanExporter(tmp_path, "router", max_bytes=0)


def test_a_directory_that_is_lost_is_logged_once_and_taken_up_again(tmp_path, caplog):
    exporter = FileSpanExporter(tmp_path / "traces", "router")
    path = Path(tmp_path / "traces")
    (path / "router.jsonl").unlink()
    path.rmdir()
    for _ in range(2):
        assert exporter.export(made_spans()) is SpanExportResult.FAILURE
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    path.mkdir()
    assert exporter.export(made_spans()) is SpanExportResult.SUCCESS
