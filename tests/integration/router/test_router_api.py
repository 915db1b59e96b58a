"""What a router takes, what it refuses and in which words, and who can't harm it."""

import grpc
import pytest

from slipstream.client import AsyncClient
from slipstream.core.errors import CapacityError, InvalidRequest, ModelNotFound, Unavailable
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.prompt import MAX_MESSAGES
from slipstream.options import build
from slipstream.rpc.v1 import common_pb2
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from support.network.key_files import key, write_keys
from support.network.streams import refusal
from support.services import fleet
from support.services.fleet import eventually, num_ready, routed, stub_of, target_worker

CODE = grpc.StatusCode


def generation(**fields):
    return pb.Generation(**{"prompt": pb.Prompt(text="hello"), **fields})


def speculating(**fields):
    return generation(speculation=pb.SpeculationOptions(**fields))


INVALID = CODE.INVALID_ARGUMENT
CHAT, MANY = (
    pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hello")] * number)
    for number in (1, MAX_MESSAGES + 1)
)
MOST = (4 << 20) - 128
REFUSALS = [
    (generation(adapter_id="lora"), CODE.UNIMPLEMENTED, "adapter_id"),
    (generation(n=2), CODE.UNIMPLEMENTED, "n above 1"),
    (generation(logprobs=21), INVALID, "logprobs is 21"),
    (generation(json_schema="{}", regex="a+"), INVALID, "json_schema and regex"),
    (pb.Generation(), INVALID, "no prompt"),
    (generation(prompt=pb.Prompt(text="")), INVALID, "empty"),
    (generation(prompt=pb.Prompt(raw=True, chat=CHAT)), INVALID, "not messages"),
    (generation(model="gpt"), CODE.NOT_FOUND, "no model 'gpt' here, but tiny"),
    (generation(prompt=pb.Prompt(text="x" * 5000)), INVALID, "exceed the context of 4096"),
    (generation(prompt=pb.Prompt(text="x" * MOST)), INVALID, "exceeds 262144, 64 for each"),
    (generation(prompt=pb.Prompt(token_ids={"ids": [1] * 5000})), INVALID, "exceeds the context"),
    (generation(prompt=pb.Prompt(token_ids={"ids": [1] * MOST})), INVALID, "10000 fields"),
    (generation(prompt=pb.Prompt(chat=MANY)), INVALID, f"but at most {MAX_MESSAGES} fit"),
    (speculating(widths=[1] * 5000), INVALID, "widths has 5000 depths"),
    (generation(session={"session_id": "never-begun"}), CODE.NOT_FOUND, "no session never-begun"),
    (generation(stopping={"stop": ["x"] * 17}), INVALID, "stop has 17 strings"),
    (generation(sampling={"logit_bias": {n: 1.0 for n in range(1025)}}), INVALID, "up to 1024"),
    (generation(sampling={"logit_bias": {259: 1.0}}), INVALID, "logit_bias has token id 259"),
    (generation(sampling={"temperature": -1}), INVALID, "temperature is -1"),
    (generation(model_defaults=["seed"]), INVALID, "model_defaults has 'seed'"),
    (generation(prompt=pb.Prompt(token_ids={"ids": [300]})), INVALID, "token id 300"),
    (speculating(shape=common_pb2.SHAPE_FORK), INVALID, "shape fork does not go with exact"),
    (speculating(drafter="glide"), INVALID, "drafter glide is not here, but ngram"),
]
PLACES = {
    "Generation": lambda asked: asked,
    "SamplingParams": lambda asked: asked.sampling,
    "ChatMessage": lambda asked: asked.prompt.chat.messages[0],
}
for name, place in PLACES.items():
    unknown = generation(prompt=pb.Prompt(chat=CHAT), sampling={"logit_bias": {3: 1.0}})
    place(unknown).MergeFromString(b"\xa0\x06\x01")  # field 100, a number
    REFUSALS += [(unknown, CODE.UNIMPLEMENTED, f"field 100 of {name} ")]


async def test_what_can_not_be_honoured_is_refused_by_name_on_both_calls(client, stub):
    for asked, code, sentence in REFUSALS:
        stream = stub.GenerateStream(pb.GenerateStreamRequest(generation=asked))
        for call in (stub.Generate(pb.GenerateRequest(generation=asked)), stream.read()):
            refused = await refusal(call)
            assert (sentence, refused.code()) == (sentence, code)
            assert sentence in refused.details()
    refused = await refusal(stub.Generate(pb.GenerateRequest.FromString(b"\xa0\x06\x01")))
    assert "field 100 of GenerateRequest " in refused.details()
    assert len((await client.generate("hello", max_tokens=3)).token_ids) == 3


async def test_the_first_message_names_the_request_and_the_last_one_ends_it(stub):
    asked = generation(request_id="mine", stopping={"max_new_tokens": 5}, sampling={"seed": 9})
    stream = stub.GenerateStream(pb.GenerateStreamRequest(generation=asked))
    messages = [message async for message in stream]
    whole = await stub.Generate(pb.GenerateRequest(generation=asked))
    unnamed = await stub.Generate(pb.GenerateRequest(generation=generation()))
    assert len(messages) > 1
    assert [at for at, message in enumerate(messages) if message.HasField("prompt")] == [0]
    assert [message for message in messages if message.HasField("finish")] == messages[-1:]
    prompt = messages[0].prompt
    assert (prompt.request_id, prompt.model, prompt.seed) == ("mine", "tiny", 9)
    assert messages[-1].finish.usage.num_output_tokens == 5
    assert whole.prompt == prompt
    assert unnamed.prompt.request_id


async def test_requests_without_a_place_get_a_retry_time(served):
    async with routed([served], max_requests=1) as client, stub_of(client.address) as stub:
        async with client.stream("hello", max_tokens=4000) as running:
            await anext(running)
            refused = await refusal(stub.Generate(pb.GenerateRequest(generation=generation())))
            with pytest.raises(CapacityError, match="1 requests are running"):
                await client.tokenize("hello")
        assert refused.code() is CODE.RESOURCE_EXHAUSTED
        assert "1 requests are running" in refused.details()
        assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]
        await eventually(client.server_info, lambda info: info.num_requests == 0)
        await client.generate("hello", max_tokens=3)


async def test_without_a_target_nothing_runs_and_health_says_so():
    router = Router(build(RouterConfig, address="127.0.0.1:0", targets=("127.0.0.1:1",)))
    port = await router.start()
    async with AsyncClient(f"127.0.0.1:{port}", retries=False) as client:
        with pytest.raises(Unavailable, match="no target has been reached yet"):
            await client.generate("hello", max_tokens=3)
        info = await fleet.until(client, lambda info: "not reached" not in info.replicas[0].reason)
        assert (info.replicas[0].state, num_ready(info, "target")) == ("connecting", 0)
    await router.stop(0)


async def test_who_shows_no_token_is_turned_away_from_everything(served, tmp_path):
    keys = write_keys(tmp_path / "keys.toml", key("alice", "open-sesame"))
    shown = (("authorization", "Bearer open-sesame"),)
    async with (
        routed([served], token="open-sesame", key_file=keys) as client,
        stub_of(client.address) as stub,
    ):
        calls = [
            (stub.Generate, pb.GenerateRequest(generation=generation())),
            (stub.Tokenize, pb.TokenizeRequest(prompt=pb.Prompt(text="x"))),
            (stub.GetModelInfo, pb.GetModelInfoRequest()),
            (stub.GetServerInfo, pb.GetServerInfoRequest()),
            (stub.DeleteSession, pb.DeleteSessionRequest(session_id="x")),
        ]
        wrong = (("authorization", "Bearer open"),)
        stream = stub.GenerateStream(pb.GenerateStreamRequest(generation=generation()))
        turned_away = [stream.read(), *(call(request) for call, request in calls)]
        turned_away += [call(request, metadata=wrong) for call, request in calls]
        for call in turned_away:
            assert (await refusal(call)).code() is CODE.UNAUTHENTICATED
        for call, request in calls[:4]:
            await call(request, metadata=shown)


async def test_several_models_are_distinguished_by_name(served, draft, folder):
    large = target_worker(fleet.save_models(folder.parent, "large", seed=7))
    async with fleet.running(large, draft), routed([served, large], [draft]) as client:
        assert [info.model for info in await client.models()] == ["large", "tiny"]
        with pytest.raises(InvalidRequest, match="there are several: large, tiny"):
            await client.generate("hello")
        with pytest.raises(ModelNotFound, match="no model 'huge' here, but large, tiny"):
            await client.generate("hello", model="huge")
        for name, worker in (("large", large), ("tiny", served)):
            before = (await worker.load()).num_rounds
            forced = SpeculationOptions(mode=Mode.FORCED)
            result = await client.generate("hello", model=name, max_tokens=20, speculation=forced)
            assert (await worker.load()).num_rounds > before
            assert result.prompt.model == name
            # the draft was made for one of them, and sits with no other
            assert (result.stats.speculation.num_spec_steps > 0) == (name == "tiny")


async def test_abilities_of_a_model_are_listed_with_the_drafts_that_are_there(served, draft):
    async with fleet.running(draft), routed([served], [draft]) as client:
        info = await client.model_info()
        kinds = {row.kind: row.num_replicas for row in info.drafters}
        assert kinds == {"glide": 1, "ngram": 1}
        assert (info.num_targets, info.limits.context_length) == (1, fleet.CONTEXT)
        await draft.stop()
        await fleet.until(client, lambda info: num_ready(info, "draft") == 0)
        lost = {row.kind: row.num_replicas for row in (await client.model_info()).drafters}
        assert lost == {"glide": 0, "ngram": 1}
