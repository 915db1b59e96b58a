"""Telemetry and description of a target: spans of what is traced and of nothing else, metrics of
everything, and all that routers and drafts need to know."""

import asyncio
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from opentelemetry.trace import StatusCode as SpanStatus

from slipstream.core.sequence import TokenSequence
from slipstream.core.tree import TokenTree
from slipstream.core.types import Proposal, Session
from slipstream.engine.thread import EngineThread
from slipstream.models.loading import load_model
from slipstream.rpc.v1 import target_pb2
from slipstream.telemetry import catalog
from slipstream.verifying.batcher import BatchedTarget
from slipstream.verifying.build import TargetLimits, build_target
from slipstream.verifying.meter import Activity
from slipstream_target.__main__ import describe, sample
from support.models import tiny
from support.models.hand_clock import HandClock
from support.models.tiny_checkpoint import save_checkpoint
from support.network.streams import refusal
from support.services.served_target import IDENTITY

PROMPT = tuple(tiny.tokens(20))
SESSION = Session("s", len(PROMPT), 50)


async def test_a_span_says_what_was_decided_and_what_was_cached_once(served, listener):
    stream = await served.open(SESSION)
    with listener.caller() as trace:
        tokens = await stream.rounds(PROMPT, 4, trace)
        await stream.end()
        again = await served.open(replace(SESSION, max_tokens=4))
        await again.verify(0, tokens[:-3], trace=trace)
        chain = Proposal(TokenTree.chain(tokens[-2:]))
        await again.verify(len(tokens) - 3, tokens[-3:-2], chain, trace)
        await again.end()
    prefix = "slipstream.verdict."
    *_, opening, last = (
        {name.removeprefix(prefix): at for name, at in span.attributes.items() if prefix in name}
        for span in listener.spans("target.verify")
    )
    assert opening["num_cached"] == len(tokens) - 4
    assert last == {"nodes": 2, "accepted": 2, "final": 2, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("start", "tokens", "proposal", "error"),
    [
        (7, PROMPT, Proposal(), "SessionOutOfSync"),
        (0, (*PROMPT[:-1], 12345), Proposal(), "InvalidRequest"),
        (0, PROMPT, Proposal(TokenTree.chain([12345])), "InvalidRequest"),
    ],
)
async def test_an_error_is_its_spans_status_and_says_nothing_of_the_prompt(
    served, listener, start, tokens, proposal, error
):
    stream = await served.open(SESSION)
    with listener.caller() as trace:
        await refusal(stream.verify(start, tokens, proposal, trace))
    await served.until_empty()
    [span] = listener.spans()
    assert span.status.status_code is SpanStatus.ERROR
    assert dict(span.attributes) == {"error.type": error}
    assert span.events == ()
    assert "12345" not in str(span.status.description)


async def test_verifications_say_which_forward_they_shared_and_histograms_add_them_up(
    served, listener
):
    async def talk(number):
        prompt = tuple(tiny.tokens(3 + number, number))
        stream = await served.open(Session(f"s{number}", len(prompt), 50))
        await stream.rounds(prompt, 8, trace)
        await stream.end()

    with listener.caller() as trace:
        await asyncio.gather(*(talk(number) for number in range(6)))
    spans = [span.attributes for span in listener.spans("target.verify")]
    batches = [(at["slipstream.batch.rows"], at["slipstream.batch.sessions"]) for at in spans]
    load = await served.load()
    assert len(batches) == load.num_rounds == 48
    # Each of n sessions that share a forward says so.
    assert sum(Fraction(1, sessions) for _, sessions in batches) == load.num_steps
    assert sum(Fraction(rows, sessions) for rows, sessions in batches) == load.num_rows
    metrics = catalog.STEP_ROWS, catalog.STEP_SESSIONS, catalog.STEP_DURATION
    rows, sessions, seconds = map(listener.point, metrics)
    assert (rows.sum, rows.count) == (load.num_rows, load.num_steps)
    assert sessions.count == seconds.count == load.num_steps
    assert load.num_rounds <= sessions.sum <= load.num_rows
    queue = listener.point(catalog.TARGET_QUEUE)
    assert queue.count == load.num_rounds
    assert queue.min > 0 < seconds.min


async def test_gauges_say_what_is_held_and_totals_what_was_sent(served, listener):
    def point(metric, **attributes):
        sample(served.servicer, listener.telemetry.instruments)
        return listener.point(metric, **attributes).value

    parked = await served.open(Session("parked", len(PROMPT), 50))
    await parked.verify(0, PROMPT)
    await parked.park()
    stream = await served.open(SESSION)
    mirror = served.mirror(stream, (0, 1))
    await stream.verify(0, PROMPT)
    await mirror.read_to(len(PROMPT))
    load = await served.load()
    assert point(catalog.KV_USED) == load.kv_bytes > 0
    assert point(catalog.KV_CAPACITY) == load.kv_capacity_bytes > 0
    assert point(catalog.KV_CACHED) == load.kv_cached_bytes
    assert point(catalog.KV_SENT) == load.kv_streamed_bytes > 0
    assert point(catalog.KV_STREAMS) == 1
    assert point(catalog.SESSIONS, state="active") == 1
    assert point(catalog.SESSIONS, state="parked") == 1
    assert point(catalog.WAITING) == 0
    assert point(catalog.ROWS_IN_FLIGHT) == 1  # the parked session has left the others' keys
    assert point(catalog.ROWS_FREE) == 31
    await stream.end()
    await served.until(lambda load: load.num_sessions == 0)
    assert point(catalog.ROWS_IN_FLIGHT) == 0
    assert point(catalog.ROWS_FREE) == 32
    assert point(catalog.SESSIONS, state="active") == 0


async def test_a_target_waits_while_a_running_session_is_between_two_rounds(model):
    clock, steps, engine = HandClock(0.0), [], tiny.local_target(model)
    step = engine.step

    def step_of_two_seconds(batch):
        clock.now += 2
        step(batch)

    engine.step = step_of_two_seconds
    thread = EngineThread("target", clock=clock)
    target = BatchedTarget(engine, thread, clock=clock)
    target.on_step = steps.append
    clock.now += 7
    sequence = TokenSequence(SESSION, PROMPT)
    for _ in range(3):
        verdict = await target.verify(sequence, Proposal())
        sequence.append(verdict.tokens)
        clock.now += 3
    assert target.spent.totals() == {Activity.BUSY: 6, Activity.WAITING: 9, Activity.IDLE: 7}
    assert target.spent.waiting_share() == 9 / 22
    seen = Counter((step.num_tokens, step.num_sessions, step.seconds) for step in steps)
    assert seen == {(20, 1, 2): 1, (1, 1, 2): 2}
    await target.release(SESSION.session_id)
    clock.now += 5
    assert target.spent.totals()[Activity.IDLE] == 12
    await target.close()
    thread.close()


async def test_the_tokenizer_is_described_only_to_those_who_ask(served):
    brief = await served.stub.DescribeTarget(target_pb2.DescribeTargetRequest())
    asked = target_pb2.DescribeTargetRequest(with_tokenizer=True)
    whole = await served.stub.DescribeTarget(asked)
    assert brief.identity == whole.identity == IDENTITY
    assert not brief.HasField("tokenizer")
    assert whole.tokenizer.json == b"{}"


def test_a_description_says_what_a_target_holds_and_can_hold(tmp_path):
    loaded = load_model(str(save_checkpoint(tmp_path / "tiny")), dtype="bfloat16")
    built = build_target(loaded, limits=TargetLimits())
    about = describe(loaded, built, max_sessions=7)
    other = describe(loaded, built, max_sessions=7)
    assert about.identity.incarnation != other.identity.incarnation
    assert (list(about.stop_token_ids), about.max_sessions) == ([0], 7)
    memory = about.memory
    assert memory.weight_bytes == built.memory.weight_bytes > 0
    assert memory.kv_bytes == built.memory.kv_bytes
    assert memory.workspace_bytes == built.memory.workspace_bytes
    assert memory.kv_bytes > 0 < memory.workspace_bytes
    assert (about.numerics, about.dtype) == ("invariant", "bfloat16")
