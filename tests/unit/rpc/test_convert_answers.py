"""Answers, models and routers survive the wire, and nothing that is no such value gets in."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.errors import HandshakeError, InvalidRequest
from slipstream.core.logprobs import TokenLogprob, TopLogprob
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.origins import TokenOrigin
from slipstream.core.request.results import Chunk, PromptInfo, RequestStats, Result, Timings
from slipstream.core.request.server_info import ServerInfo
from slipstream.core.row_costs import Offer, RowCosts
from slipstream.core.tree import TokenTree
from slipstream.core.types import FinishReason, Plan, Proposal, SparseDistribution, Verdict
from slipstream.options import without_none
from slipstream.rpc.conversion import convert
from slipstream.rpc.conversion import convert_generation as answered
from slipstream.rpc.conversion.convert_common import proposal_to_pb
from slipstream.rpc.v1 import draft_pb2, target_pb2
from slipstream.rpc.v1 import generation_pb2 as pb

UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = {int: UINT32, str: TEXT, float: st.floats(0, 1e6), bool: st.booleans()}


def maybe(values):
    return st.none() | values


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def values_of(kind, **own):
    """Values of a type; those of a dataclass by the types of its fields, but for its `own`."""
    (kind, is_optional), parts = without_none(kind), get_args(kind)
    if is_optional:
        return maybe(values_of(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind).items()
        return st.builds(kind, **{n: values_of(of) for n, of in hints if n not in own} | own)
    if get_origin(kind) is tuple:
        return st.lists(values_of(parts[0]), max_size=4).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(values_of, parts), max_size=4)
    return PLAIN[kind] if kind in PLAIN else st.sampled_from(kind)


COUNTS, REASON, STATS = map(values_of, (tuple[int, ...], FinishReason, RequestStats))
PROMPT_INFOS = values_of(PromptInfo, seed=st.integers(0, 2**64 - 1), logprobs=st.just(()))
UNLIKELY = st.floats(max_value=0, allow_nan=False)
TOP = st.builds(TopLogprob, UINT32, UNLIKELY, st.binary(max_size=8))
LOGPROBS = st.builds(
    TokenLogprob, UNLIKELY, st.lists(TOP, max_size=3).map(tuple), st.binary(max_size=8)
)


@st.composite
def told_of(draw, answers):
    answer = draw(answers)
    size = len(answer.token_ids) if draw(st.booleans()) else 0
    origins = st.lists(maybe(st.sampled_from(TokenOrigin)), min_size=size, max_size=size)
    told = len(answer.token_ids) if draw(st.booleans()) else 0
    logprobs = draw(st.lists(maybe(LOGPROBS), min_size=told, max_size=told))
    return replace(answer, origins=tuple(draw(origins)), logprobs=tuple(logprobs))


@given(
    told_of(
        st.builds(Chunk, TEXT, COUNTS, prompt=maybe(PROMPT_INFOS))
        | st.builds(Chunk, TEXT, COUNTS, REASON, STATS, maybe(PROMPT_INFOS))
    )
)
def test_a_chunk_is_the_same_on_the_other_side(chunk):
    assert answered.chunk_from_pb(over_the_wire(answered.chunk_to_pb(chunk))) == chunk


@given(told_of(st.builds(Result, TEXT, COUNTS, REASON, STATS, PROMPT_INFOS)))
def test_a_result_is_the_same_on_the_other_side(result):
    message = over_the_wire(answered.result_to_pb(result))
    assert answered.result_from_pb(message) == result
    speculation = result.stats.speculation
    assert message.finish.speculation.mean_acceptance_length == speculation.mean_acceptance_length
    assert message.finish.speculation.draft_acceptance_rate == speculation.draft_acceptance_rate


@given(
    values_of(
        ModelInfo,
        sampling_defaults=st.dictionaries(st.sampled_from(["temperature", "top_p"]), st.just(0.5)),
    )
)
def test_a_model_is_the_same_on_the_other_side(model):
    assert convert.model_info_from_pb(over_the_wire(convert.model_info_to_pb(model))) == model


@given(values_of(ServerInfo))
def test_a_router_is_the_same_on_the_other_side(server):
    told = convert.message_of(pb.GetServerInfoResponse, server)
    assert convert.value_from_pb(ServerInfo, over_the_wire(told)) == server


@pytest.mark.parametrize(
    ("read", "message", "reason"),
    [
        (answered.chunk_from_pb, {"finish": {}}, "without a reason"),
        (answered.result_from_pb, {"finish": {"reason": 9}}, "finish reason is 9"),
        (answered.chunk_from_pb, {"token_ids": [5], "origins": [1, 2]}, "1 tokens have 2 origins"),
        (answered.chunk_from_pb, {"token_ids": [5], "origins": [9]}, "token origin is 9"),
        (
            answered.result_from_pb,
            {"token_ids": [5], "origins": [9], "finish": {"reason": 1}},
            "token origin is 9",
        ),
        (convert.model_info_from_pb, {"verifications": [{}]}, "verification is not said"),
        (convert.model_info_from_pb, {"drafters": [{"shapes": [77]}]}, "shape is 77"),
        (convert.model_info_from_pb, {"sampling_defaults": {"top_p": 2}}, "top_p is 2"),
    ],
)
def test_an_answer_or_a_model_that_is_none_is_refused(read, message, reason):
    kinds = {
        answered.chunk_from_pb: pb.GenerateStreamResponse,
        answered.result_from_pb: pb.GenerateResponse,
        convert.model_info_from_pb: pb.ModelInfo,
    }
    with pytest.raises(InvalidRequest, match=reason):
        read(kinds[read](**message))


def test_a_target_whose_sampling_defaults_can_not_be_is_refused():
    identity = dict.fromkeys(("model_id", "tokenizer_hash"), "x") | {"vocab_size": 9}
    about = {"identity": identity, "context_length": 9, "sampling_defaults": {"top_p": 2}}
    with pytest.raises(HandshakeError, match="defaults can't be used: top_p is 2"):
        convert.model_facts_from_pb(target_pb2.DescribeTargetResponse(**about))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1])
def test_what_is_no_time_is_refused(value):
    for at in fields(Timings):
        with pytest.raises(InvalidRequest, match=at.name):
            finish = pb.FinishInfo(reason=1, timings=pb.RequestTimings(**{at.name: value}))
            answered.chunk_from_pb(pb.GenerateStreamResponse(finish=finish))


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(TokenTree.chain([5, -1])),
        Proposal(TokenTree.chain([2**32])),
        Proposal(TokenTree.chain([5]), distributions=(SparseDistribution((-3,), (1.0,)), None)),
    ],
    ids=["negative", "too large", "in a distribution"],
)
def test_a_proposal_with_an_id_that_is_none_is_refused_before_it_is_sent(proposal):
    with pytest.raises(InvalidRequest, match="the proposal can't be told: "):
        proposal_to_pb(proposal)


OFFERS = [
    None,
    Offer(4),
    Offer(1, 0.02, RowCosts()),
    Offer(32, 0.02, RowCosts(((1, 1.0), (2, 1.0), (8, 1.25), (32, 2.5)))),
]


def sent(offer):
    return convert.message_of(target_pb2.Verdict, Verdict((5, 6), 1, offer=offer))


@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_comes_as_it_was_sent(offer):
    assert convert.verdict_from_pb(sent(offer)).offer == offer


@pytest.mark.parametrize(
    "change",
    [
        *({"rows": 0}, {"round_s": -0.001}, {"round_s": float("nan")}),
        *({"costs": {"points": points}} for points in ({}, {1: 2.0}, {1: 1.0, 2: 2.0, 3: 1.5})),
        {"costs": {"points": dict.fromkeys(range(1, 5002), 1.0)}},
    ],
)
def test_an_offer_that_can_not_be_is_none_and_the_verdict_counts(change):
    message = sent(OFFERS[-1])
    message.offer.CopyFrom(target_pb2.Offer(**{"rows": 4, **change}))
    verdict = convert.verdict_from_pb(message)
    assert (verdict.tokens, verdict.offer) == ((5, 6), None)


def test_a_plan_s_prices_come_as_they_were_sent():
    plan = Plan(4, 15, worth=0.125, row_prices=(0.25, 0.5))
    assert convert.value_from_pb(Plan, convert.message_of(draft_pb2.Plan, plan)) == plan
