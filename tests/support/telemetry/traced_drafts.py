"""A draft that is listened to, and requests to it whose messages are traced as a test has it."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.core.sequence import Delta
from slipstream.rpc.conversion.convert import delta_to_pb, plan_to_pb, session_to_pb
from slipstream.rpc.tracing import trace_to_pb
from slipstream.rpc.v1 import draft_pb2, draft_pb2_grpc
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

PROPOSE = "draft.propose"
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
        propose = draft_pb2.Propose(delta=delta_to_pb(delta), plan=plan_to_pb(plan, self.feed))
        message = draft_pb2.SpeculateRequest(propose=propose, trace=trace_to_pb(at))
        await self.call.write(message)
        return (await self.call.read()).proposed


@asynccontextmanager
async def request(drafts, feed=None):
    """One that is open meanwhile; its end is the draft's to notice."""
    call = draft_pb2_grpc.DraftServiceStub(drafts.channel).Speculate()
    opening = draft_pb2.OpenDraft(
        session=session_to_pb(SESSION, fence=0),
        target=drafts.models.identity,
        target_layout=drafts.models.layout,
    )
    await call.write(draft_pb2.SpeculateRequest(open=opening))
    await call.read()
    yield Request(drafts, feed, call)
    call.cancel()


@asynccontextmanager
async def reading(models, script, heard, *, kv_wait_s=LIMIT_S):
    """A request to a draft that reads from the script, and tells `heard` if that is somebody.
    Afterwards everything has ended."""
    telemetry = None if heard is None else heard.telemetry
    waits = {"kv_wait_s": kv_wait_s, "kv_catch_up_s": LIMIT_S}
    async with (
        following(models, script, **waits, telemetry=telemetry) as (drafts, feed),
        request(drafts, feed) as asking,
    ):
        yield asking


def all_keys(keys):
    """A target that sends all of them at once, and then waits for more."""
    return Script([slice_of(keys, 0, NUM_KEYS), asyncio.Event()])
