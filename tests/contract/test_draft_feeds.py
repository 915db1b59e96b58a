"""A draft's feed of keys and values: how stale it may be, what it survives, what it never believes.

The target here is a real server that sends what each test has it send.
"""

import asyncio
from contextlib import asynccontextmanager

import google_crc32c
import grpc.aio
import pytest
import torch

import tiny
from slipstream.core.inline import finished
from slipstream.core.types import Delta, Plan, Proposal, Session
from slipstream.draft.servicer import DraftSettings
from slipstream.rpc.kv import KvDtype, KvFormat, KvFrame, KvSource, frame_to_pb
from slipstream.rpc.tensors import pack
from slipstream.rpc.v1 import common_pb2, draft_pb2, target_pb2, target_pb2_grpc
from slipstream.target.engine import LocalTarget
from slipstream.target.servicer import SERVICE
from tiny_services import MAX_LAG, Models, draft_place, serving

PROMPT = tuple(tiny.tokens(21))
NUM_KEYS = len(PROMPT) - 1
SESSION = Session("s", len(PROMPT), 30)
DEEP = Plan(max_depth=MAX_LAG, max_nodes=30)
LAYERS = (0, 2)
FORM = KvFormat(LAYERS, 2, 16, KvDtype.FLOAT32)
LIMIT_S = 60


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(scope="module")
def engine(models):
    """The target that holds the true keys."""
    engine = LocalTarget(models.target, free_rows=16)
    shorter = Session("s", NUM_KEYS, 40)
    finished(engine.verify(shorter, Delta(0, PROMPT[:-1]), Proposal()))
    return engine


@pytest.fixture(scope="module")
def keys(engine):
    """[layers, 2 * heads, positions, head_dim]."""
    view = engine.view("s", LAYERS)
    pairs = [torch.cat(view.layers[layer])[:, : view.count] for layer in LAYERS]
    return torch.stack(pairs)


def message(keys, start, end, /, **changes):
    """A slice of the truth, some fields changed."""
    source = KvSource("s", "one")
    frame = KvFrame(start, end - start, pack(keys[:, :, start:end].contiguous(), FORM.encoding))
    made = frame_to_pb(source, FORM, frame)
    for name, value in changes.items():
        made.ClearField(name)
        if name == "layers":
            made.layers.extend(value)
        else:
            setattr(made, name, value)
    return made


class Script(target_pb2_grpc.TargetServiceServicer):
    """Answers the first StreamKv with the first list of steps, and so on; then with silence.

    A step is a message to send, a status to end with, or an event to wait for.
    """

    def __init__(self, *steps):
        self.steps = list(steps)
        self.asked = []
        self.num_open = 0

    async def StreamKv(self, request, context):
        self.asked.append(request)
        steps = self.steps.pop(0) if self.steps else [asyncio.Event()]
        self.num_open += 1
        try:
            for step in steps:
                await self._take(step, context)
        finally:
            self.num_open -= 1

    async def _take(self, step, context):
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, grpc.StatusCode):
            await context.abort(step, "as the test has it")
        else:
            await context.write(step)


@asynccontextmanager
async def following(models, script, *, kv_wait_s=0.0, kv_catch_up_s=0.0):
    """A draft that reads from the script, and where that is."""

    def register(server):
        target_pb2_grpc.add_TargetServiceServicer_to_server(script, server)

    settings = DraftSettings(kv_wait_s=kv_wait_s, kv_catch_up_s=kv_catch_up_s)
    async with (
        serving({SERVICE: register}) as address,
        draft_place(models, "glide", settings) as drafts,
    ):
        feed = draft_pb2.KvFeed(
            address=address, session_id="s", incarnation="one", credential="secret"
        )
        yield drafts, feed


async def proposed(drafts, feed, num_keys, plan=DEEP):
    """What is proposed once so many keys are there, or no more will come."""
    draft = drafts.remote(lambda: feed)
    await draft.propose(SESSION, Delta(0, PROMPT), Plan(1, 1))
    await drafts.feeds.wait("s", num_keys, LIMIT_S)
    return draft, await draft.propose(SESSION, Delta(len(PROMPT), ()), plan)


async def embedded(models, engine):
    return await models.drafter("glide", engine).draft.propose(SESSION, Delta(0, PROMPT), DEEP)


def held(drafts, keys):
    """Whether all that is held is true; and how much that is."""
    view = drafts.feeds.view("s", LAYERS)
    for place, layer in enumerate(LAYERS):
        ours = torch.cat(view.layers[layer])[:, : view.count]
        assert torch.equal(ours, keys[place][:, : view.count])
    return view.count


@pytest.mark.parametrize("step", [1, 7, NUM_KEYS])
async def test_keys_arrive_bit_for_bit_however_they_are_cut(models, engine, keys, step):
    cuts = range(0, NUM_KEYS, step)
    sent = [message(keys, at, min(at + step, NUM_KEYS)) for at in cuts]
    async with following(models, Script([*sent, asyncio.Event()])) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    assert proposal.tree == (await embedded(models, engine)).tree
    assert len(proposal.tree) == MAX_LAG


@pytest.mark.parametrize("staleness", range(MAX_LAG + 2))
async def test_staleness_and_depth_stay_within_the_lag_of_training(models, keys, staleness):
    known = NUM_KEYS - staleness
    script = Script([message(keys, 0, known), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, known)
        await draft.release("s")
    assert proposal.staleness == staleness
    assert len(proposal.tree) == max(MAX_LAG - staleness, 0)
    assert proposal.stopped_by == "lag"


async def test_a_proposal_waits_for_the_newest_key(models, keys):
    there = asyncio.Event()
    script = Script([message(keys, 0, 5), there, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script, kv_wait_s=LIMIT_S) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        asked = asyncio.ensure_future(draft.propose(SESSION, Delta(0, PROMPT), DEEP))
        while drafts.feeds.view("s", LAYERS).count < 5:
            await drafts.load()
        assert not asked.done()
        there.set()
        proposal = await asked
        await draft.release("s")
    assert proposal.staleness == 0
    assert proposal.timing.kv_wait_s > 0


async def test_a_request_begins_with_keys_that_are_new_enough_to_draft(models, keys):
    there, rest = asyncio.Event(), asyncio.Event()
    known = len(PROMPT) - MAX_LAG
    script = Script([message(keys, 0, known - 1), there, message(keys, known - 1, known), rest])
    async with following(models, script, kv_catch_up_s=LIMIT_S) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        asked = asyncio.ensure_future(draft.propose(SESSION, Delta(0, PROMPT), DEEP))
        while drafts.feeds.view("s", LAYERS).count < known - 1:
            await drafts.load()
        assert not asked.done()
        there.set()
        proposal = await asked
        # A later round does without: what it lacks may never come.
        later = await draft.propose(SESSION, Delta(len(PROMPT), (1, 2)), DEEP)
        await draft.release("s")
    assert (len(proposal.tree), proposal.staleness) == (1, MAX_LAG - 1)
    assert (len(later.tree), later.stopped_by) == (0, "lag")


BAD = {
    "a byte short": lambda keys: {"payload": message(keys, 5, 9).payload[:-1]},
    "a byte more": lambda keys: {"payload": message(keys, 5, 9).payload + b"\0"},
    "no payload": lambda keys: {"payload": b"", "crc32c": google_crc32c.value(b"")},
    "a flipped bit": lambda keys: {"payload": flipped(message(keys, 5, 9).payload)},
    "another checksum": lambda keys: {"crc32c": 1},
    "another dtype": lambda keys: {"dtype": common_pb2.KV_DTYPE_BFLOAT16},
    "no dtype": lambda keys: {"dtype": 0},
    "an unknown dtype": lambda keys: {"dtype": 9},
    "another encoding": lambda keys: {"encoding": target_pb2.KV_ENCODING_INT8},
    "another process": lambda keys: {"incarnation": "two"},
    "another session": lambda keys: {"session_id": "t"},
    "layers turned round": lambda keys: {"layers": (2, 0)},
    "one layer": lambda keys: {"layers": (0,)},
    "more heads": lambda keys: {"num_kv_heads": 4},
    "smaller heads": lambda keys: {"head_dim": 8},
    "no positions": lambda keys: {"count": 0},
    "more positions": lambda keys: {"count": 2**32 - 1},
    "a gap": lambda keys: {"start": 6},
    "far away": lambda keys: {"start": 2**32 - 1},
}


def flipped(payload):
    return bytes([payload[0] ^ 1]) + payload[1:]


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_slice_is_never_read_and_the_session_goes_on(models, keys, name, caplog):
    bad = message(keys, 5, 9, **BAD[name](keys))
    script = Script([message(keys, 0, 5), bad, message(keys, 5, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == 5
        assert (await drafts.load()).num_kv_streams == 0
        again = await draft.propose(SESSION, Delta(len(PROMPT), ()), DEEP)
        await draft.release("s")
    assert proposal.stopped_by == again.stopped_by == "lag"
    assert proposal.staleness == NUM_KEYS - 5
    assert len(script.asked) == 1
    assert "no more keys and values" in caplog.text


async def test_more_positions_than_the_session_has_are_not_held(models, keys):
    session = Session("s", len(PROMPT) - 5, 2)
    script = Script([message(keys, 0, 10), message(keys, 10, NUM_KEYS), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(session, Delta(0, PROMPT[:10]), DEEP)
        await drafts.feeds.wait("s", NUM_KEYS, LIMIT_S)
        assert held(drafts, keys) == 10
        await draft.release("s")


async def test_a_slice_from_a_lower_start_replaces_what_is_held(models, keys):
    wrong = keys + 1
    script = Script(
        [message(keys, 0, 5), message(wrong, 5, 12), message(keys, 5, NUM_KEYS), asyncio.Event()]
    )
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, NUM_KEYS)
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_a_lost_stream_is_taken_up_where_it_broke_off(models, keys, status):
    script = Script(
        [message(keys, 0, 5), status],
        [status],
        [message(keys, 5, NUM_KEYS), asyncio.Event()],
    )
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(SESSION, Delta(0, PROMPT), DEEP)
        while drafts.feeds.view("s", LAYERS).count < NUM_KEYS:
            await drafts.load()
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    assert [request.start for request in script.asked] == [0, 5, 5]
    assert {request.credential for request in script.asked} == {"secret"}


@pytest.mark.parametrize(
    "status",
    [
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    ],
)
async def test_what_no_second_try_can_mend_is_not_tried_again(models, keys, status):
    script = Script([message(keys, 0, 5), status])
    async with following(models, script) as (drafts, feed):
        draft, proposal = await proposed(drafts, feed, NUM_KEYS)
        assert proposal.stopped_by == "lag"
        assert held(drafts, keys) == 5
        await draft.release("s")
    assert len(script.asked) == 1


async def test_a_target_that_holds_less_than_we_do_is_asked_for_all(models, keys):
    script = Script(
        [message(keys, 0, 5), grpc.StatusCode.UNAVAILABLE],
        [grpc.StatusCode.OUT_OF_RANGE],
        [message(keys, 0, NUM_KEYS), asyncio.Event()],
    )
    async with following(models, script) as (drafts, feed):
        draft = drafts.remote(lambda: feed)
        await draft.propose(SESSION, Delta(0, PROMPT), DEEP)
        while drafts.feeds.view("s", LAYERS).count < NUM_KEYS:
            await drafts.load()
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    assert [request.start for request in script.asked] == [0, 5, 0]


async def test_a_feed_of_another_process_starts_anew(models, keys):
    def from_two(*span):
        return message(keys, *span, incarnation="two")

    script = Script(
        [message(keys, 0, 9), asyncio.Event()], [from_two(0, NUM_KEYS), asyncio.Event()]
    )
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, 9)
        feed.incarnation = "two"
        await draft.propose(SESSION, Delta(len(PROMPT), ()), DEEP)
        await drafts.feeds.wait("s", NUM_KEYS, LIMIT_S)
        assert held(drafts, keys) == NUM_KEYS
        assert (await drafts.load()).num_kv_streams == 1
        await draft.release("s")
    assert [request.start for request in script.asked] == [0, 0]
    assert [request.incarnation for request in script.asked] == ["one", "two"]


async def test_a_new_credential_goes_on_from_what_is_held(models, keys):
    script = Script(
        [message(keys, 0, 9), grpc.StatusCode.PERMISSION_DENIED],
        [message(keys, 9, NUM_KEYS), asyncio.Event()],
    )
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, NUM_KEYS)
        feed.credential = "another"
        await draft.propose(SESSION, Delta(len(PROMPT), ()), DEEP)
        await drafts.feeds.wait("s", NUM_KEYS, LIMIT_S)
        assert held(drafts, keys) == NUM_KEYS
        await draft.release("s")
    assert [request.start for request in script.asked] == [0, 9]


async def test_the_stream_ends_with_its_session(models, keys):
    script = Script([message(keys, 0, 9), asyncio.Event()])
    async with following(models, script) as (drafts, feed):
        draft, _ = await proposed(drafts, feed, 9)
        assert script.num_open == 1
        await draft.release("s")
        async with asyncio.timeout(LIMIT_S):
            while script.num_open:
                await drafts.load()


async def test_sessions_of_one_target_share_a_channel(models, keys):
    script = Script()
    async with following(models, script) as (drafts, feed):
        open_drafts = [drafts.remote(lambda: feed) for _ in range(3)]
        for at, draft in enumerate(open_drafts):
            session = Session(f"s{at}", len(PROMPT), 30)
            await draft.propose(session, Delta(0, PROMPT), DEEP)
        async with asyncio.timeout(LIMIT_S):
            while len(script.asked) < 3:
                await drafts.load()
        assert drafts.feeds.num_channels == 1
        for draft in open_drafts:
            await draft.release("s")
