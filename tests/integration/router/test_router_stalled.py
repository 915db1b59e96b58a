"""Callers that stop reading, and requests that do not end: a router gives back what they hold."""

import pytest

from slipstream.client import SamplingParams
from slipstream.core.errors import DeadlineExceeded
from slipstream.rpc.v1 import generation_pb2 as pb
from support.network.raw_http2 import raw_caller
from support.services.fleet import eventually, routed

STREAM = "/slipstream.rpc.v1.GenerationService/GenerateStream"
NUM_TOKENS = 40


def request(request_id):
    stopping = pb.StoppingCriteria(max_new_tokens=NUM_TOKENS)
    asked = pb.Generation(
        request_id=request_id,
        prompt=pb.Prompt(text="hello"),
        stopping=stopping,
        sampling={"seed": 1},
    )
    return pb.GenerateStreamRequest(generation=asked)


async def test_readers_that_stop_give_back_places_and_targets_and_their_requests_go_on(served):
    async with (
        routed([served], max_requests=2, send_timeout_s=0.3) as client,
        raw_caller(client.address) as caller,
    ):
        streams = {caller.call(STREAM, request(f"r{number}")) for number in range(2)}
        await caller.until(lambda: caller.headers == streams)  # they run, and have answers
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        await eventually(served.load, lambda load: load.num_sessions == 0)
        options = {"max_tokens": NUM_TOKENS, "sampling": SamplingParams(seed=1)}
        again = await client.generate("hello", request_id="r0", **options)
        assert again.stats.continuity.num_resumed_tokens > 0
        assert again.token_ids == (await client.generate("hello", **options)).token_ids
        assert caller.data == {}


async def test_a_reader_that_goes_on_too_late_is_told_so(served):
    async with routed([served], send_timeout_s=0.1) as client, raw_caller(client.address) as caller:
        stream = caller.call(STREAM, request("r"))
        await caller.until(lambda: stream in caller.headers)
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        caller.open_window(stream, 1 << 16)
        await caller.until(lambda: stream in caller.ended)
        num_bytes = int.from_bytes(caller.data[stream][1:5])
        message = pb.GenerateStreamResponse.FromString(caller.data[stream][5:])
        assert num_bytes == message.ByteSize()  # only what was on its way


async def test_a_request_has_an_end_even_where_its_caller_sets_none(served):
    async with routed([served], request_timeout_s=0.2) as client:
        with pytest.raises(DeadlineExceeded, match=r"has run for 0\.2 s, the longest time"):
            async for _ in client.stream("hello", max_tokens=4000):
                pass
        with pytest.raises(DeadlineExceeded, match=r"has run for 0\.2 s, the longest time"):
            await client.generate("hello", max_tokens=4000)
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        await eventually(served.load, lambda load: load.num_sessions == 0)
