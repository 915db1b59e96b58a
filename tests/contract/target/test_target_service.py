"""What the target service promises beside the port: handshakes, leases, refusals, descriptions."""

import pytest
from grpc import RpcError, StatusCode

from slipstream.core import errors
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Session
from slipstream.models.loading import load_target_parts
from slipstream.rpc.kv import DTYPE, KvDtype
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.build import build_target
from slipstream_target.description import describe
from support.models import tiny
from support.models.tiny_checkpoint import save_checkpoint
from support.services.served_target import IDENTITY, Served, refusal

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)


async def last_message(at: Served, *messages: target_pb2.VerifyRequest):
    """The refusal that a stream of these messages ends with."""
    call = at.stub.Verify()
    for message in messages[:-1]:
        await call.write(message)
        await call.read()
    await call.write(messages[-1])
    return await refusal(call.read())


def opening(session_id="s", prompt=20, **expected) -> target_pb2.VerifyRequest:
    identity = common_pb2.ModelIdentity()
    identity.CopyFrom(IDENTITY)
    for name, value in expected.items():
        setattr(identity, name, value)
    params = common_pb2.SessionParams(
        session_id=session_id, num_prompt_tokens=prompt, max_tokens=50, num_roots=1
    )
    return target_pb2.VerifyRequest(open=target_pb2.OpenTarget(session=params, expected=identity))


async def test_a_delta_may_come_behind_the_tokens_of_the_last_verdict_or_repeat_them(served):
    told, repeated = await served.open(SESSION), await served.open(Session("t", len(PROMPT), 50))
    tokens = PROMPT
    for _ in range(4):
        start = 0 if tokens == PROMPT else len(tokens)
        verdict = await told.verify(start, tokens[start:])
        assert verdict.tokens == (await repeated.verify(0, tokens)).tokens
        tokens = (*tokens, *verdict.tokens)
    with pytest.raises(RpcError) as refused:
        await told.verify(len(tokens) + 1, ())
    assert refused.value.code() is StatusCode.FAILED_PRECONDITION
    await repeated.end()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol_version", 99),
        ("model_id", "huge"),
        ("tokenizer_hash", "another one"),
        ("vocab_size", 49),
        ("incarnation", "that process"),
    ],
)
async def test_a_caller_who_expects_another_target_is_told_both_values(served, name, value):
    status = await last_message(served, opening(**{name: value}))
    assert status.code() is StatusCode.FAILED_PRECONDITION
    assert isinstance(error_from(status), errors.HandshakeError)
    for side in (value, getattr(IDENTITY, name)):
        assert str(side) in status.details()


async def test_a_caller_who_expects_nothing_is_served(served):
    stream = await served.open(SESSION, expected=common_pb2.ModelIdentity())
    assert (await stream.verify(0, PROMPT)).tokens
    await stream.end()


VERIFY = target_pb2.VerifyRequest(verify=target_pb2.VerifyProposal())
PARK = target_pb2.VerifyRequest(park=draft_pb2.Park(ttl_ms=1000))
EMPTY = target_pb2.VerifyRequest()


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ((VERIFY,), "opens a session first, but got verify"),
        ((PARK,), "opens a session first, but got park"),
        ((EMPTY,), "opens a session first, but got an empty message"),
        ((opening(), opening()), "verifies or parks, but got open"),
        ((opening(), EMPTY), "verifies or parks, but got an empty message"),
        ((opening(""),), "no id"),
        ((opening("x" * 300),), "300 characters"),
        ((opening(prompt=0),), "at least 1 token"),
    ],
)
async def test_messages_out_of_order_are_refused_and_leave_nothing(served, messages, sentence):
    status = await last_message(served, *messages)
    assert status.code() is StatusCode.INVALID_ARGUMENT
    assert sentence in status.details()
    await served.until_empty()


@pytest.mark.parametrize(
    ("start", "tokens", "proposal", "code"),
    [
        (7, (1,), Proposal(), StatusCode.FAILED_PRECONDITION),
        (0, (1, 2), Proposal(), StatusCode.INVALID_ARGUMENT),
        (0, PROMPT, Proposal(TokenTree.chain([1] * 128)), StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_refused_round_ends_its_stream_and_frees_it(served, start, tokens, proposal, code):
    stream = await served.open(SESSION)
    status = await refusal(stream.verify(start, tokens, proposal))
    assert status.code() is code
    await served.until_empty()


async def test_a_stream_that_is_cancelled_frees_its_session_and_no_other(served):
    kept = await served.open(Session("kept", len(PROMPT), 50))
    await kept.verify(0, PROMPT)
    stream = await served.open(SESSION)
    await stream.verify(0, PROMPT)
    stream.call.cancel()
    await served.until(lambda load: load.num_sessions == 1)
    assert (await served.load()).kv_bytes == served.engine.kv_bytes("kept") > 0
    again = await kept.verify(0, PROMPT)
    assert again.num_cached == len(PROMPT) - 1
    await kept.end()


async def test_what_was_parked_is_there_for_the_next_turn(served):
    stream = await served.open(SESSION)
    tokens = await stream.rounds(PROMPT, 3)
    await stream.park()
    load = await served.load()
    assert (load.num_sessions, load.num_parked, load.kv_bytes) == (0, 1, 0)
    assert load.kv_cached_bytes > 0
    turn = await served.open(Session("s", len(tokens), 20))
    assert (await turn.verify(0, tokens)).num_cached == len(tokens) - 1
    await turn.end()
    await served.until_empty()


async def test_a_higher_fence_takes_a_session_over_with_all_it_holds(served):
    old = await served.open(SESSION, fence=4)
    await old.verify(0, PROMPT)
    new = await served.open(SESSION, fence=5)
    status = await refusal(old.call.read())
    assert status.code() is StatusCode.ABORTED
    assert isinstance(error_from(status), errors.SessionTaken)
    assert (await new.verify(0, PROMPT)).num_cached == len(PROMPT) - 1
    assert new.credential != old.credential
    await new.end()
    await served.until_empty()


async def test_the_tokenizer_is_described_only_to_those_who_ask(served):
    brief = await served.stub.DescribeTarget(target_pb2.DescribeTargetRequest())
    asked = target_pb2.DescribeTargetRequest(with_tokenizer=True)
    whole = await served.stub.DescribeTarget(asked)
    assert brief.identity == whole.identity == IDENTITY
    assert not brief.HasField("tokenizer")
    assert whole.tokenizer.json == b"{}"


def test_a_description_holds_all_that_a_router_and_a_draft_need(tmp_path):
    loaded = load_target_parts(str(save_checkpoint(tmp_path / "tiny")), dtype="bfloat16")
    built = build_target(loaded)
    about = describe(loaded, built, max_sessions=7)
    assert (about.identity.model_id, about.identity.vocab_size) == ("tiny", 259)
    other = describe(loaded, built, max_sessions=7)
    assert about.identity.incarnation != other.identity.incarnation
    assert (about.context_length, list(about.stop_token_ids), about.max_sessions) == (128, [0], 7)
    memory = about.memory
    assert memory.weight_bytes == built.memory.weight_bytes > 0
    assert memory.kv_bytes == built.memory.kv_bytes
    assert memory.workspace_bytes == built.memory.workspace_bytes
    assert memory.kv_bytes > 0 < memory.workspace_bytes
    layout = about.layout
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (2, 2, 8)
    assert DTYPE.from_pb(layout.dtype) is KvDtype.BFLOAT16
    assert (about.numerics, about.dtype) == ("invariant", "bfloat16")
    parts = about.tokenizer
    text = TextTokenizer.from_parts(parts.json, parts.chat_template, dict(parts.special_tokens))
    assert text.vocab_hash == about.identity.tokenizer_hash == loaded.tokenizer_hash
    assert text.chat_template == loaded.tokenizer.chat_template
