"""Messages of megabytes: a router refuses them by counts, before it looks at what is in them."""

import grpc
import pytest

from slipstream.core.errors import CapacityError
from slipstream.core.request.prompt import MAX_MESSAGES
from slipstream.rpc.v1 import generation_pb2 as pb
from support.services.fleet import eventually, routed

MOST = (4 << 20) - 128
SERVICE = "/slipstream.rpc.v1.GenerationService"
FIELDS = "more than 10000 fields"
BYTES = "exceeds 262144, 64 for each of the context's 4096 tokens"
MESSAGES = f"but at most {MAX_MESSAGES} fit"


def ids(count):
    return pb.Prompt(token_ids=pb.TokenIds(ids=[1] * count))


def chat(count, **said):
    return pb.Prompt(chat=pb.ChatMessages(messages=[pb.ChatMessage(**said)] * count))


PROMPTS = {
    "many ids": (ids(MOST), FIELDS),
    "more ids than the context": (ids(5000), "a prompt of 5000 tokens exceeds the context of 4096"),
    "empty messages": (chat(MOST // 2), FIELDS),
    "more messages than fit": (chat(MAX_MESSAGES + 1, role="user", content="x"), MESSAGES),
    "a text of many tokens": (pb.Prompt(text="a b " * 60_000), "has more than 4096 tokens"),
    "a long text": (pb.Prompt(text="a b " * (MOST // 4)), BYTES),
    "a long message": (chat(1, role="user", content="a b " * (MOST // 4)), BYTES),
    "a long prompt in parts": (chat(100, role="user", content="a b " * 1000), BYTES),
    "arguments of a call": (
        chat(1, role="assistant", tool_calls=[pb.ToolCall(name="f", arguments="[]," * 100_000)]),
        BYTES,
    ),
}


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "Tokenize"])
async def test_a_prompt_of_too_much_is_refused_by_its_count(served, method):
    async with routed([served]) as client, grpc.aio.insecure_channel(client.address) as channel:
        call = channel.unary_stream(f"{SERVICE}/{method}")
        for name, (prompt, sentence) in PROMPTS.items():
            if method == "Tokenize":
                request = pb.TokenizeRequest(prompt=prompt)
            else:
                request = pb.GenerateRequest(generation=pb.Generation(prompt=prompt))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request.SerializeToString()).read()
            assert (name, caught.value.code()) == (name, grpc.StatusCode.INVALID_ARGUMENT)
            assert sentence in caught.value.details()
        assert (await client.generate("hello", max_tokens=3)).token_ids


async def test_options_of_too_much_are_refused_by_their_count(served):
    cases = {
        "widths": (pb.SpeculationOptions(widths=[1] * 5000), "widths has 5000 depths"),
        "speculation": (pb.SpeculationOptions(widths=[1] * MOST), FIELDS),
    }
    async with routed([served]) as client, grpc.aio.insecure_channel(client.address) as channel:
        for speculation, sentence in cases.values():
            asked = pb.Generation(prompt=pb.Prompt(text="x"), speculation=speculation)
            data = pb.GenerateRequest(generation=asked).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"{SERVICE}/Generate")(data)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert sentence in caught.value.details()


async def test_a_name_of_a_model_is_short_wherever_it_is_asked_for(served):
    requests = {
        "Tokenize": pb.TokenizeRequest(model="m" * 5000, prompt=pb.Prompt(text="x")),
        "GetModelInfo": pb.GetModelInfoRequest(model="m" * 5000),
    }
    async with routed([served]) as client, grpc.aio.insecure_channel(client.address) as channel:
        for method, request in requests.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"{SERVICE}/{method}")(request.SerializeToString())
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert len(caught.value.details()) < 300


async def test_tokenizing_takes_a_place_like_a_request(served):
    async with routed([served], max_requests=1) as client:
        async with client.stream("hello", max_tokens=4000) as running:
            await anext(running)
            with pytest.raises(CapacityError, match="1 requests are running"):
                await client.tokenize("hello")
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        assert await client.tokenize("hello")
