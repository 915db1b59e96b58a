"""Laws of replicas as a router sees them: when one is lost, when it is back, and how busy it is."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.server_info import ReplicaState
from slipstream.rpc.channel import ChannelOptions, Dialer
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from slipstream_router.replicas.pool import Pool
from slipstream_router.replicas.probes import DraftProbe
from slipstream_router.replicas.replica import Heartbeat, Hooks, Replica
from support.services.background import serving, until

LIMIT_S = 20
PATIENT, IMPATIENT = Heartbeat(0.02, 60.0), Heartbeat(0.02, 0.5)


class Draft(draft_pb2_grpc.DraftServiceServicer):
    """The other end: says what it is, and what it holds, while it is not silent."""

    def __init__(self, incarnation="one"):
        self.incarnation = incarnation
        self.num_sessions = 0
        self.num_asked = 0
        self.refusal = None
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def DescribeDraft(self, request, context):
        identity = common_pb2.ModelIdentity(
            protocol_version=PROTOCOL_VERSION, incarnation=self.incarnation
        )
        return draft_pb2.DescribeDraftResponse(identity=identity, kind="vanilla", dtype="float32")

    async def GetDraftLoad(self, request, context):
        self.num_asked += 1
        await self.speaks.wait()
        if self.refusal is not None:
            raise self.refusal
        load = common_pb2.Load(num_sessions=self.num_sessions)
        return draft_pb2.GetDraftLoadResponse(load=load)


@asynccontextmanager
async def served(draft, address="127.0.0.1:0"):
    """The address of the draft behind a server."""
    register = draft_pb2_grpc.add_DraftServiceServicer_to_server
    services = {DraftProbe.service: lambda server: register(draft, server)}
    async with serving(services, ServerOptions(address)) as served_at:
        try:
            yield served_at
        finally:
            draft.speaks.set()


dial = Dialer(ChannelOptions())


@asynccontextmanager
async def followed(address, heartbeat=PATIENT):
    """A replica that is ready, and whom it has forgotten."""
    forgotten = []
    hooks = Hooks(forget=forgotten.append)
    replica = Replica(address, dial, DraftProbe(), heartbeat=heartbeat, hooks=hooks)
    following = asyncio.get_running_loop().create_task(replica.follow())
    try:
        await until(lambda: replica.state is ReplicaState.READY)
        yield replica, forgotten
    finally:
        following.cancel()
        await asyncio.wait({following})
        await replica.close()


async def asked_again(draft):
    """Wait for two more questions: the first one may have been on its way."""
    before = draft.num_asked
    await until(lambda: draft.num_asked >= before + 2)


async def test_a_silent_replica_is_lost_while_its_connection_stands_and_back_when_it_answers():
    draft = Draft()
    async with served(draft) as address, followed(address, IMPATIENT) as (replica, _):
        before = replica.epoch
        draft.speaks.clear()
        assert (
            await asyncio.wait_for(asyncio.shield(before), LIMIT_S)
            == "it has not answered for 0.5 s"
        )
        assert before.done()
        await until(lambda: replica.state is ReplicaState.CONNECTING)
        draft.speaks.set()
        await until(lambda: replica.state is ReplicaState.READY)
        assert before.done()
        assert not replica.epoch.done()


async def test_another_process_at_the_address_is_another_epoch_without_a_past():
    async with AsyncExitStack() as first_life:
        address = await first_life.enter_async_context(served(Draft("one")))
        async with followed(address) as (replica, forgotten):
            before = replica.epoch
            assert (replica.info.incarnation, replica.info.dtype) == ("one", "float32")
            forgotten.clear()
            await first_life.aclose()
            await asyncio.wait_for(asyncio.shield(before), LIMIT_S)
            async with served(Draft("two"), address):
                await until(lambda: replica.state is ReplicaState.READY)
                assert not replica.epoch.done()
                assert replica.info.incarnation == "two"
                assert forgotten == [address]


async def test_requests_of_other_routers_count_and_own_ones_at_once():
    draft = Draft()
    draft.num_sessions = 5
    async with served(draft) as address, followed(address) as (replica, _):
        assert replica.num_busy == 5
        with replica.used(), replica.used():
            assert replica.num_busy == 7  # they began after it was asked
            draft.num_sessions = 7
            await asked_again(draft)
            await asked_again(draft)
            assert replica.num_busy == 7
            assert replica.load.num_sessions == 7
            draft.num_sessions = 0
            await asked_again(draft)
            await asked_again(draft)
            assert replica.num_busy == 2
        assert replica.info.num_requests == 0


class Listing:
    """A source that lists what it is told."""

    def __init__(self, *addresses):
        self.queue = asyncio.Queue()
        self.say(*addresses)

    def say(self, *addresses):
        self.queue.put_nowait(frozenset(addresses))

    async def __call__(self):
        while True:
            yield await self.queue.get()


async def test_who_runs_on_a_replica_that_is_not_listed_any_more_still_hears_of_its_loss():
    draft = Draft()
    async with served(draft) as address:
        source = Listing(address)
        pool = Pool(source, DraftProbe(), dial, heartbeat=IMPATIENT, hooks=Hooks())
        running = asyncio.get_running_loop().create_task(pool.run())
        await until(pool.ready)
        (replica,) = pool
        with replica.used():
            source.say()
            await until(lambda: replica.state is ReplicaState.DRAINING)
            assert not replica.epoch.done()
            draft.speaks.clear()
            await asyncio.wait_for(asyncio.shield(replica.epoch), LIMIT_S)
            assert replica.state is ReplicaState.DRAINING
            assert list(pool) == [replica]
        running.cancel()
        await asyncio.wait({running})


@pytest.mark.parametrize(("every_s", "limit_s"), [(0.0, 5.0), (2.0, 1.0)])
def test_a_heartbeat_slower_than_the_patience_with_it_is_refused(every_s, limit_s):
    with pytest.raises(InvalidRequest):
        Heartbeat(every_s, limit_s)
