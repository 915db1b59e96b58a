"""Attributes of requests and rounds, in the conventions' words, and of their texts nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.prompt import PromptForm
from slipstream.core.request.request import Ask, Generation, SessionRef
from slipstream.core.request.results import Continuity, PromptInfo, RequestStats, Timings
from slipstream.core.request.stats import Outcomes
from slipstream.core.tree import ROOT, CopySource, TokenTree
from slipstream.core.types import (
    MAX_SEED,
    FinishReason,
    NodeStats,
    Proposal,
    ReplyTiming,
    SamplingParams,
    Verdict,
    Verification,
)
from slipstream.telemetry.attributes import (
    operation_attributes,
    prompt_attributes,
    request_attributes,
    server_attributes,
    stats_attributes,
)
from support.models.rounds import outcome
from support.telemetry.listening import Listener
from support.telemetry.watched_rounds import PREFILL, Script, watched

MARKER = "do-not-quote-me"
MESSAGES = ({"role": "user", "content": f"say {MARKER}"},)
PROMPTS = [f"say {MARKER}", MESSAGES, (5, 6, 7)]
INFO = PromptInfo("r1", "small", 3, 12)


def stats():
    outcomes = Outcomes()
    outcomes.record(outcome(4, 3, 2, stopped_by="policy"))
    outcomes.record(outcome(3, 3, 0, stopped_by="policy"))
    outcomes.record(outcome(0, 0, 0, fallback="draft lost"))
    speculation = outcomes.summary(num_spec_tokens=4, lossless=True)
    timings = Timings(1.0, 2.0, 0.5, 1.0)
    return RequestStats(12, 4, 5, timings, speculation, Continuity(True, 1, 2, 3))


@pytest.mark.parametrize(
    ("prompt", "raw", "operation"),
    [
        (MESSAGES, False, "chat"),
        ("text", False, "chat"),
        ("text", True, "text_completion"),
        ((5, 6, 7), False, "text_completion"),
        ((5, 6, 7), True, "text_completion"),
    ],
)
def test_messages_are_a_chat_and_raw_text_and_token_ids_are_completed(prompt, raw, operation):
    asked = Generation(prompt, Ask(form=PromptForm(raw)))
    about = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "slipstream"}
    assert operation_attributes(asked, "") == about
    assert operation_attributes(asked, "small") == about | {"gen_ai.request.model": "small"}


def test_a_request_says_what_it_asks_for():
    sampling = SamplingParams(0.5, top_k=7, top_p=0.75, presence_penalty=1.0, seed=3)
    options = SpeculationOptions(mode=Mode.AUTO, verification=Verification.MCSD)
    ask = Ask(sampling, 9, speculation=options, request_id="r1")
    asked = Generation("hello", ask, "small", SessionRef("talk"), num_received=2)
    assert request_attributes(asked, is_stream=True) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": "small",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.frequency_penalty": 0,
        "gen_ai.request.presence_penalty": 1,
        "gen_ai.request.seed": 3,
        "gen_ai.conversation.id": "talk",
        "slipstream.request.mode": "auto",
        "slipstream.request.verification": "mcsd",
        "slipstream.request.num_received": 2,
    }
    left = replace(asked, ask=replace(ask, model_defaults=("temperature",)))
    assert "gen_ai.request.temperature" not in request_attributes(left, is_stream=True)


def test_the_end_says_what_it_took_and_what_speculation_brought():
    said = {**prompt_attributes(INFO), **stats_attributes(FinishReason.STOP, stats())}
    assert said["gen_ai.response.finish_reasons"] == ("stop",)
    assert {name: value for name, value in said.items() if "finish" not in name} == {
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "small",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "slipstream.speculation.lossless": True,
        "slipstream.speculation.steps": 2,
        "slipstream.speculation.plain_steps": 1,
        "slipstream.speculation.rejected_steps": 1,
        "slipstream.speculation.draft_tokens": 7,
        "slipstream.speculation.accepted_tokens": 2,
        "slipstream.speculation.lookup_tokens": 0,
        "slipstream.speculation.accepted_lookup_tokens": 0,
        "slipstream.speculation.store_tokens": 0,
        "slipstream.speculation.accepted_store_tokens": 0,
        "slipstream.speculation.acceptance_length": 2,
        "slipstream.speculation.acceptance_rate": 2 / 7,
        "slipstream.stops.policy": 2,
        "slipstream.fallbacks.draft_lost": 1,
        "slipstream.continuity.is_kept": True,
        "slipstream.continuity.resumed_tokens": 1,
        "slipstream.continuity.unkept_tokens": 2,
        "slipstream.continuity.target_losses": 3,
    }


@given(
    prompt=st.sampled_from(PROMPTS),
    padding=st.text(max_size=9),
    seed=st.integers(0, MAX_SEED),
    temperature=st.sampled_from([0, 0.7]),
    has_session=st.booleans(),
)
def test_no_attribute_has_any_of_the_text_and_each_is_one_that_a_span_takes(
    prompt, padding, seed, temperature, has_session
):
    sampling = SamplingParams(temperature, seed=seed, logit_bias=((123454321, 1.0),))
    ask = Ask(
        sampling,
        stop=(padding + MARKER, MARKER + padding),
        form=PromptForm(isinstance(prompt, str)),
    )
    asked = Generation(prompt, ask, "small", SessionRef("talk") if has_session else None)
    said = {
        **request_attributes(asked, is_stream=True),
        **prompt_attributes(INFO),
        **stats_attributes(FinishReason.STOP, stats()),
    }
    assert MARKER not in repr(said)
    assert "123454321" not in repr(said)
    assert "5, 6, 7" not in repr(said)
    heard = Listener()
    heard.tracer.start_span("request", attributes=said).end()
    assert dict(heard.span("request").attributes) == said
    for value in said.values():
        assert type(value) is not int or -(2**63) <= value < 2**63


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.7:50051", "10.0.0.7", 50051),
        ("dns:///router.example:443", "router.example", 443),
        ("[::1]:80", "::1", 80),
        ("unix:/run/slipstream:1", "unix:/run/slipstream:1", None),
        ("xds:///router", "xds:///router", None),
    ],
)
def test_a_server_is_named_by_host_and_port(address, host, port):
    said = {"server.address": host} | ({} if port is None else {"server.port": port})
    assert server_attributes(address) == said


TIMING = ReplyTiming(service_s=0.5, queue_s=0.25, engine_s=0.125, kv_wait_s=0.0625)
TREE = TokenTree((1, 2, 3, 4), (ROOT, 0, 0, ROOT))
TOLD = Script(
    draft_s=3,
    verify_s=2,
    proposal=Proposal(
        TREE,
        (NodeStats(0.5, 0.5, 1.0), NodeStats(0.5, 0.5, 2.0, 0.75), NodeStats(0.5, 0.5, 3.0)),
        stopped_by="policy",
        staleness=5,
        timing=TIMING,
        sources=(CopySource.LOOKUP,),
    ),
    verdict=Verdict((1, 9), 1, FinishReason.STOP, timing=TIMING),
)
REPLY = {
    "slipstream.reply.service_ms": 500,
    "slipstream.reply.queue_ms": 250,
    "slipstream.reply.engine_ms": 125,
}


def test_a_round_has_its_plan_its_proposal_and_its_verdict():
    heard, _ = watched([PREFILL, TOLD], 9)
    _, at = heard.spans("round")
    assert dict(at.attributes) == {
        "slipstream.round.index": 1,
        "slipstream.round.kind": "speculative",
        "slipstream.round.drafted": 4,
        "slipstream.round.accepted": 1,
        "slipstream.round.final": 2,
    }
    said = dict(heard.span("draft.propose").attributes)
    assert {name: said[name] for name in said if ".plan." not in name} == {
        "slipstream.proposal.waited_ms": 3000,
        "slipstream.proposal.nodes": 4,
        "slipstream.proposal.copied": 1,
        "slipstream.proposal.sources.lookup": 1,
        "slipstream.proposal.depth": 2,
        "slipstream.proposal.stop_reason": "policy",
        "slipstream.proposal.staleness": 5,
        "slipstream.proposal.entropy": 2,
        "slipstream.proposal.score": 0.75,
        "slipstream.proposal.kv_wait_ms": 62.5,
        **REPLY,
    }
    assert dict(heard.spans("target.verify")[1].attributes) == {
        "slipstream.verdict.waited_ms": 2000,
        "slipstream.verdict.nodes": 4,
        "slipstream.verdict.accepted": 1,
        "slipstream.verdict.final": 2,
        "slipstream.verdict.finish_reason": "stop",
        **REPLY,
    }
