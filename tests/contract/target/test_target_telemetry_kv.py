"""What a target tells of streams of keys and values: a span of each, and spans of snapshots."""

from dataclasses import replace

import pytest
from grpc import StatusCode
from opentelemetry.trace import SpanKind
from opentelemetry.trace import StatusCode as SpanStatus

from slipstream.core.types import Session
from slipstream.telemetry import catalog
from slipstream_target.kv_streams import SLICE_BYTES
from slipstream_target.telemetry import STREAM_KV
from support.models import tiny
from support.services.served_target import refusal, served_target, wide_model
from support.telemetry.listening import parent_id, span_id

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)


async def test_a_snapshot_links_to_its_stream_and_belongs_to_its_verification(served, listener):
    stream = await served.open(SESSION)
    tokens = PROMPT
    with listener.caller() as asked, listener.caller() as trace:
        mirror = served.mirror(stream, (2, 0), trace=asked)
        for start, told in ((0, trace), (20, trace), (21, None), (22, trace)):
            verdict = await stream.verify(start, tokens[start:], trace=told)
            await mirror.read_to(len(tokens))
            tokens = (*tokens, *verdict.tokens)
        await stream.end()
        assert not await mirror.read()
    about = listener.span(STREAM_KV)
    assert (about.kind, parent_id(about)) == (SpanKind.SERVER, span_id(asked))
    spans = listener.spans("kv.snapshot")
    verified = [span.context.span_id for span in listener.spans("target.verify")]
    assert [parent_id(span) for span in spans] == verified
    links = {link.context.span_id for span in spans for link in span.links}
    assert links == {about.context.span_id}
    size = mirror.form.bytes_per_position
    names = [f"slipstream.kv.{name}" for name in ("bytes", "layers", "start", "count")]
    values = [(20 * size, 2, 0, 20), (size, 2, 20, 1), (size, 2, 22, 1)]
    expected = [dict(zip(names, row, strict=True)) for row in values]
    assert [dict(span.attributes) for span in spans] == expected
    assert dict(about.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": STREAM_KV,
        "rpc.response.status_code": "OK",
        "slipstream.kv.layers": 2,
        "slipstream.kv.encoding": "raw",
        "slipstream.kv.bytes": 23 * size,
        "slipstream.kv.snapshots": 4,
    }
    assert about.start_time < spans[0].start_time <= spans[-1].end_time <= about.end_time


async def test_only_the_first_snapshots_of_a_stream_are_spans(model, listener):
    bounded = replace(listener.telemetry, trace_rounds=2)
    async with served_target(model, telemetry=bounded) as served:
        stream = await served.open(SESSION)
        mirror = served.mirror(stream, (1,))
        tokens = PROMPT
        with listener.caller() as trace:
            for start in (0, *range(20, 24)):
                verdict = await stream.verify(start, tokens[start:], trace=trace)
                await mirror.read_to(len(tokens))
                tokens = (*tokens, *verdict.tokens)
        await stream.end()
    starts = [span.attributes["slipstream.kv.start"] for span in listener.spans("kv.snapshot")]
    assert starts == [0, 20]


async def test_slices_that_go_out_at_a_stretch_are_one_snapshot(listener):
    prompt = tuple(tiny.tokens(300))
    async with served_target(wide_model(), telemetry=listener.telemetry) as served:
        stream = await served.open(Session("s", len(prompt), 50))
        with listener.caller() as trace:
            await stream.verify(0, prompt, trace=trace)
            mirror = served.mirror(stream, (0, 1, 2, 3), trace=trace)
            await mirror.read_to(len(prompt))
            await stream.end()
            assert not await mirror.read()
    num_bytes = len(prompt) * mirror.form.bytes_per_position
    assert num_bytes > SLICE_BYTES
    span = listener.span("kv.snapshot")
    assert span.attributes["slipstream.kv.bytes"] == num_bytes
    assert span.attributes["slipstream.kv.count"] == len(prompt)
    size = listener.point(catalog.SNAPSHOT_SIZE)
    assert (size.sum, size.count) == (num_bytes, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"credential": "a guess"}, StatusCode.PERMISSION_DENIED),
        ({"start": 99}, StatusCode.OUT_OF_RANGE),
        ({"layers": (7,)}, StatusCode.INVALID_ARGUMENT),
        ({"encoding": 77}, StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_refused_stream_says_its_status_and_no_secret(
    served, stream, listener, fields, code
):
    await stream.verify(0, PROMPT)
    with listener.caller() as trace:
        said = {"layers": (0,), "trace": {"traceparent": trace.traceparent}, **fields}
        call = served.stub.StreamKv(served.request(stream, **said))
        assert (await refusal(call.read())).code() is code
    span = listener.span(STREAM_KV)
    assert span.attributes["rpc.response.status_code"] == code.name
    assert span.status.status_code is SpanStatus.ERROR
    told = f"{dict(span.attributes)} {span.status.description}"
    assert stream.credential not in told
    assert "a guess" not in told
