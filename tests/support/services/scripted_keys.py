"""A real server that sends a draft what a test has it send, and the true keys to send."""

import asyncio
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np

from slipstream.core.sequence import TokenSequence
from slipstream.core.types import Plan, Session
from slipstream.options import build
from slipstream.rpc.conversion.convert_common import message_of
from slipstream.rpc.kv import KvDtype, KvFormat, KvFrame, KvStreamSource, frame_to_bytes, pack
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from slipstream_draft.config import DraftConfig
from slipstream_target.servicer import SERVICE
from support.models import tiny
from support.services.background import serving
from support.services.tiny_services import MAX_LAG, draft_place

PROMPT = tuple(tiny.tokens(21))
NUM_KEYS = len(PROMPT) - 1
SESSION = Session("s", len(PROMPT), 30)
DEEP = Plan(max_depth=MAX_LAG, max_nodes=30)
LAYERS = (0, 2)
FORM = KvFormat(LAYERS, 2, 16, KvDtype.FLOAT32)
LIMIT_S = 60


def true_keys(engine):
    """All of them, [layers, 2 * heads, positions, head_dim]."""
    view = engine.view("s", LAYERS)
    return np.stack([view.layers[layer][:, : view.count] for layer in LAYERS])


def message(keys, start, end, /, **changes):
    """A slice of the truth, some fields changed."""
    source = KvStreamSource("s", "one")
    frame = KvFrame(start, end - start, pack(keys[:, :, start:end], FORM.encoding))
    made = target_pb2.StreamKvResponse.FromString(frame_to_bytes(source, FORM, frame))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Script(target_pb2_grpc.TargetServiceServicer):
    """Answers the first StreamKv with the first list of steps, and so on; then with silence.

    A step is a message to send, a status to end with, an event to wait for, or "asks": slices with
    requests for proposals are sent as they come there, and the answers put into `answers`.
    """

    def __init__(self, *steps):
        self.steps = list(steps)
        self.asked = []
        self.num_open = 0
        self.asks, self.answers = asyncio.Queue(), asyncio.Queue()

    async def ask(self, start, tokens, plan, keys=None):
        """The draft's answer to a request of the target, which stands behind a slice or alone."""
        told = common_pb2.Delta(start=start, tokens=tokens)
        propose = draft_pb2.Propose(delta=told, plan=message_of(draft_pb2.Plan, plan))
        asking = target_pb2.StreamKvResponse(propose=propose)
        if keys is not None:
            asking.MergeFrom(keys)
        self.asks.put_nowait(asking)
        return await asyncio.wait_for(self.answers.get(), LIMIT_S)

    async def StreamKv(self, request_iterator, context):
        self.asked.append((await anext(request_iterator)).open)
        steps = self.steps.pop(0) if self.steps else [asyncio.Event()]
        self.num_open += 1
        try:
            for step in steps:
                await self._take(step, request_iterator, context)
        finally:
            self.num_open -= 1

    async def _take(self, step, requests, context):
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif step == "asks":
            while True:
                await context.write(await self.asks.get())
                self.answers.put_nowait((await anext(requests)).proposed)
        elif isinstance(step, grpc.StatusCode):
            await context.abort(step, "as the test has it")
        else:
            await context.write(step)


@asynccontextmanager
async def following(models, script, *, kv_wait_s=0.0, kv_catch_up_s=0.0, telemetry=None):
    """A draft that reads from the script, and where that is."""

    def register(server):
        target_pb2_grpc.add_TargetServiceServicer_to_server(script, server)

    waits_ms = {"kv_wait_ms": 1000 * kv_wait_s, "kv_catch_up_ms": 1000 * kv_catch_up_s}
    config = build(DraftConfig, **waits_ms, window=0)
    async with (
        serving({SERVICE: register}) as address,
        draft_place(models, "glide", config, telemetry=telemetry) as drafts,
    ):
        feed = draft_pb2.KvFeed(
            address=address, session_id="s", incarnation="one", credential="secret"
        )
        yield drafts, feed


async def proposed(drafts, feed, num_keys, plan=DEEP):
    """Return a draft and its proposal once so many keys are there, or no more will come."""
    draft = drafts.remote(lambda: feed)
    sequence = TokenSequence(SESSION, PROMPT)
    await draft.propose(sequence, Plan(1, 1))
    await drafts.receivers.wait("s", num_keys, LIMIT_S)
    return draft, await draft.propose(sequence, plan)


def held(drafts, keys):
    """Check all held keys and values, and return their number."""
    view = drafts.receivers.view("s", LAYERS)
    for place, layer in enumerate(LAYERS):
        ours = view.layers[layer][:, : view.count]
        assert np.array_equal(ours, keys[place][:, : view.count])
    return view.count
