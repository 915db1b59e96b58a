"""Messages of megabytes: a router refuses them by counts, before it looks at what is in them."""

import grpc

from slipstream.core.request.prompt import MAX_MESSAGES
from slipstream.rpc.v1 import generation_pb2 as pb
from support.network.streams import refusal

MOST = (4 << 20) - 128
SERVICE = "/slipstream.rpc.v1.GenerationService"
FIELDS = "more than 10000 fields"
BYTES = "exceeds 262144, 64 for each of the context's 4096 tokens"
MESSAGES = f"but at most {MAX_MESSAGES} fit"


def ids(count):
    return pb.Prompt(token_ids=pb.TokenIds(ids=[1] * count))


def chat(count, **said):
    return pb.Prompt(chat=pb.ChatMessages(messages=[pb.ChatMessage(**said)] * count))


def cases():
    """Return methods, messages that are too large, and what the refusals name."""
    calls = [pb.ToolCall(name="f", arguments="[]," * 100_000)]
    prompts = [
        (ids(MOST), FIELDS),
        (ids(5000), "a prompt of 5000 tokens exceeds the context of 4096"),
        (chat(MOST // 2), FIELDS),
        (chat(MAX_MESSAGES + 1, role="user", content="x"), MESSAGES),
        (pb.Prompt(text="a b " * 60_000), "has more than 4096 tokens"),
        (pb.Prompt(text="a b " * (MOST // 4)), BYTES),
        (chat(1, role="user", content="a b " * (MOST // 4)), BYTES),
        (chat(100, role="user", content="a b " * 1000), BYTES),
        (chat(1, role="assistant", tool_calls=calls), BYTES),
    ]
    text = pb.Prompt(text="x")
    widths = [(5000, "widths has 5000 depths"), (MOST, FIELDS)]
    return [
        *(("Tokenize", pb.TokenizeRequest(prompt=prompt), said) for prompt, said in prompts),
        *(
            (method, pb.GenerateRequest(generation=pb.Generation(prompt=prompt)), said)
            for method in ("Generate", "GenerateStream")
            for prompt, said in prompts
        ),
        *(
            ("Generate", pb.GenerateRequest(generation={"prompt": text, "speculation": wide}), said)
            for wide, said in (
                (pb.SpeculationOptions(widths=[1] * at), said) for at, said in widths
            )
        ),
        ("Tokenize", pb.TokenizeRequest(model="m" * 5000, prompt=text), "model"),
        ("GetModelInfo", pb.GetModelInfoRequest(model="m" * 5000), "model"),
    ]


async def test_a_message_of_too_much_is_refused_by_its_count(client, shared_router):
    async with grpc.aio.insecure_channel(shared_router) as channel:
        for method, request, sentence in cases():
            call = channel.unary_stream(f"{SERVICE}/{method}")(request.SerializeToString())
            refused = await refusal(call.read())
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, (method, sentence)
            assert sentence in refused.details()
            assert len(refused.details()) < 300
    assert (await client.generate("hello", max_tokens=3)).token_ids
