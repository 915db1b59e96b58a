"""Telemetry of a draft: spans of the proposals that are traced and of no others, metrics of all."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from slipstream.core.sequence import Delta
from slipstream.core.types import Shape
from slipstream.rpc.conversion.convert_common import message_of, proposal_from_pb
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream.telemetry import catalog
from support.services.scripted_keys import (
    DEEP,
    LIMIT_S,
    NUM_KEYS,
    PROMPT,
    SESSION,
    Script,
    following,
)
from support.services.scripted_keys import message as slice_of
from support.services.tiny_services import DraftPlace

WIDE = replace(DEEP, shape=Shape.CAPE)
FIRST = Delta(0, PROMPT)
NOTHING_NEW = Delta(len(PROMPT), ())


@dataclass
class Request:
    """An open stream to a draft."""

    drafts: DraftPlace
    feed: draft_pb2.KvFeed | None
    call: Any

    async def propose(self, delta, plan=DEEP, at=None):
        """The answer, as it came; `at` is where the message stands in a trace."""
        propose = draft_pb2.Propose(
            delta=message_of(common_pb2.Delta, delta),
            plan=message_of(draft_pb2.Plan, plan, feed=self.feed),
        )
        message = draft_pb2.SpeculateRequest(
            propose=propose, trace=message_of(common_pb2.TraceContext, at)
        )
        await self.call.write(message)
        return (await self.call.read()).proposed


@asynccontextmanager
async def reading(models, keys, listener, *, count=NUM_KEYS, kv_wait_s=LIMIT_S):
    """A request to a draft that reads so many keys. Afterwards everything has ended."""
    script = Script([slice_of(keys, 0, count), asyncio.Event()])
    waits = {"kv_wait_s": kv_wait_s, "kv_catch_up_s": LIMIT_S}
    async with following(models, script, **waits, telemetry=listener.telemetry) as (drafts, feed):
        call = draft_pb2_grpc.DraftServiceStub(drafts.channel).Speculate()
        opening = draft_pb2.OpenDraft(
            session=message_of(common_pb2.SessionParams, SESSION, fence=0),
            target=models.identity,
            target_layout=models.layout,
        )
        await call.write(draft_pb2.SpeculateRequest(open=opening))
        await call.read()
        yield Request(drafts, feed, call)
        call.cancel()


@pytest.mark.parametrize("plan", [DEEP, WIDE], ids=["chain", "cape"])
async def test_a_span_says_of_a_proposal_what_the_answer_says(models, keys, listener, plan):
    async with reading(models, keys, listener) as asking:
        with listener.caller() as at:
            answer = await asking.propose(FIRST, plan, at)
    proposal = proposal_from_pb(answer.proposal)
    depths = proposal.tree.depths()
    last = proposal.stats[depths.index(max(depths))]
    waited_s = answer.timing.kv_wait_s
    assert waited_s > 0
    said = dict(listener.span("draft.propose").attributes)
    assert said.pop("slipstream.proposal.entropy") == pytest.approx(last.entropy)
    assert said.pop("slipstream.proposal.kv_wait_ms") == pytest.approx(waited_s * 1000, abs=0.001)
    assert said == {
        "slipstream.proposal.nodes": len(proposal.tree),
        "slipstream.proposal.depth": max(depths),
        "slipstream.proposal.stop_reason": proposal.stopped_by,
        "slipstream.proposal.staleness": answer.staleness,
    }


@pytest.mark.parametrize("staleness", [0, 3])
async def test_metrics_are_what_proposals_said_and_what_is_held(models, keys, listener, staleness):
    known = NUM_KEYS - staleness
    async with reading(models, keys, listener, count=known, kv_wait_s=0) as asking:
        answers = [await asking.propose(FIRST)]
        await asking.drafts.receivers.wait("s", known, LIMIT_S)
        answers += [await asking.propose(NOTHING_NEW, plan) for plan in (DEEP, WIDE)]
        load = await asking.drafts.load()
        for _ in range(2):  # the second one adds nothing
            asking.drafts.servicer.sample(listener.telemetry.instruments)
    trees = [proposal_from_pb(answer.proposal).tree for answer in answers]
    timings = [answer.timing for answer in answers]
    assert answers[-1].staleness == staleness
    for metric, values in [
        (catalog.STALENESS, [answer.staleness for answer in answers]),
        (catalog.DRAFT_NODES, [len(tree) for tree in trees]),
        (catalog.DRAFT_DEPTH, [max(tree.depths()) for tree in trees]),
        (catalog.DRAFT_QUEUE, [timing.queue_s for timing in timings]),
        (catalog.DRAFT_ENGINE, [timing.engine_s for timing in timings]),
        (catalog.KV_WAIT, [timing.kv_wait_s for timing in timings]),
    ]:
        point = listener.point(metric)
        assert (point.count, point.sum) == (3, pytest.approx(sum(values), abs=1e-5))
    expected = {catalog.KV_USED: load.kv_bytes, catalog.KV_STREAMS: 1, catalog.WAITING: 0}
    expected[catalog.KV_RECEIVED] = keys.nbytes * known // NUM_KEYS
    assert {metric: listener.point(metric).value for metric in expected} == expected
    assert listener.point(catalog.SESSIONS, state="active").value == 1
    assert listener.point(catalog.SESSIONS, state="parked").value == 0
