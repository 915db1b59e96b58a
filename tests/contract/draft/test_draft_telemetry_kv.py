"""What a draft tells of the streams of keys it reads: one span a call, below what began it."""

import grpc
from opentelemetry.trace import SpanKind, StatusCode

from support.services.scripted_keys import NUM_KEYS, Script
from support.services.scripted_keys import message as slice_of
from support.telemetry import traced_drafts
from support.telemetry.listening import parent_id, span_id
from support.telemetry.traced_drafts import FIRST, PROPOSE, STREAM_KV, all_keys, reading


def placed(script):
    """The spans whose children the target's are to be."""
    return [span_id(asked.trace) for asked in script.asked]


def end_of(span):
    said = span.attributes
    return span.status.status_code, said["rpc.response.status_code"], said.get("error.type")


async def test_the_stream_of_keys_is_a_child_of_the_proposal_that_began_it(models, keys, heard):
    script = all_keys(keys)
    async with reading(models, script, heard) as asking:
        with heard.caller() as at:
            await asking.propose(FIRST, at=at)
            await asking.propose(traced_drafts.NOTHING_NEW, at=at)
        assert not heard.spans(STREAM_KV), "a stream's span ends with the stream"
        host, port = asking.feed.address.split(":")
    span, begun_by = heard.span(STREAM_KV), heard.spans(PROPOSE)[0]
    assert (span.kind, parent_id(span)) == (SpanKind.CLIENT, begun_by.context.span_id)
    assert placed(script) == [span.context.span_id]
    # Nobody needs it any more: that is no failure.
    assert end_of(span) == (StatusCode.UNSET, "CANCELLED", None)
    assert dict(span.attributes) == {
        "rpc.system.name": "grpc",
        "rpc.method": STREAM_KV,
        "rpc.response.status_code": "CANCELLED",
        "server.address": host,
        "server.port": int(port),
        "slipstream.kv.bytes": keys.nbytes,
        "slipstream.kv.snapshots": 1,
    }


async def test_every_try_to_read_keys_is_a_call_of_its_own(models, keys, heard):
    script = Script(
        [slice_of(keys, 0, 5), slice_of(keys, 5, 9), grpc.StatusCode.UNAVAILABLE],
        [slice_of(keys, 9, NUM_KEYS)],
    )
    async with reading(models, script, heard) as asking:
        with heard.caller() as at:
            await asking.propose(FIRST, at=at)
        while len(heard.spans(STREAM_KV)) < 2:
            await asking.drafts.load()
    calls = heard.spans(STREAM_KV)
    assert {parent_id(call) for call in calls} == {heard.span(PROPOSE).context.span_id}
    assert placed(script) == [call.context.span_id for call in calls]
    assert [end_of(call) for call in calls] == [
        (StatusCode.ERROR, "UNAVAILABLE", "UNAVAILABLE"),
        (StatusCode.UNSET, "OK", None),
    ]
    assert [call.attributes["slipstream.kv.snapshots"] for call in calls] == [2, 1]
