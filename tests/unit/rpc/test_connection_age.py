"""Laws of connections that age: nothing that runs is cut off, and callers look names up again."""

import asyncio

import grpc
import pytest

from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.v1 import draft_pb2, draft_pb2_grpc
from support.services.background import serving

NAME = "slipstream.rpc.v1.DraftService"
LIMIT_S = 30


class Named(draft_pb2_grpc.DraftServiceServicer):
    """Says its name, and echoes for as long as it is spoken to."""

    def __init__(self, name):
        self._name = name

    async def DescribeDraft(self, request, context):
        return draft_pb2.DescribeDraftResponse(kind=self._name)

    async def Speculate(self, requests, context):
        async for _ in requests:
            yield draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())


def aging(name, *, age_s=1.0, age_grace_s=60.0, **options):
    """The address of a service whose connections age; `options` are more of `ServerOptions`."""
    options |= {"max_connection_age_s": age_s, "max_connection_age_grace_s": age_grace_s}
    register = draft_pb2_grpc.add_DraftServiceServicer_to_server
    services = {NAME: lambda server: register(Named(name), server)}
    return serving(services, ServerOptions(grace_s=0.1, **options))


async def asked(call):
    await call.write(draft_pb2.SpeculateRequest())
    return await call.read()


async def who_answers(stub):
    return (await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())).kind


async def until_aged(channel):
    """Until its connection takes no new calls."""
    async with asyncio.timeout(LIMIT_S):
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


async def test_a_stream_that_is_older_than_its_connection_may_get_ends_as_if_nothing_was():
    async with aging("old") as address, connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        call = stub.Speculate()
        await asked(call)
        await until_aged(channel)
        new = await stub.DescribeDraft(draft_pb2.DescribeDraftRequest(), timeout=LIMIT_S)
        assert (await asked(call)).HasField("parked")
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert (new.kind, await call.code()) == ("old", grpc.StatusCode.OK)


async def test_a_stream_that_outlasts_the_grace_is_cut_off():
    async with (
        aging("old", age_grace_s=0.2) as address,
        connect(address, ChannelOptions()) as channel,
    ):
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate()
        await asked(call)
        async with asyncio.timeout(LIMIT_S):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_connection_without_a_call_is_closed_and_one_with_a_call_is_not_idle():
    async with (
        aging("busy", age_s=0, max_connection_idle_s=1.0) as address,
        connect(address, ChannelOptions()) as channel,
        connect(address, ChannelOptions()) as other,
    ):
        call, idle = (draft_pb2_grpc.DraftServiceStub(at) for at in (channel, other))
        call = call.Speculate()
        await asked(call)
        assert await who_answers(idle) == "busy"
        await until_aged(other)
        assert (await asked(call)).HasField("parked")
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        await call.done_writing()
        assert await who_answers(idle) == "busy", "the next call dials anew"


async def test_one_connection_too_many_is_closed_and_room_is_given_back():
    async with aging("full", age_s=0, max_connections=1) as address:
        one, another = (connect(address, ChannelOptions()) for _ in range(2))
        assert await who_answers(draft_pb2_grpc.DraftServiceStub(one)) == "full"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await who_answers(draft_pb2_grpc.DraftServiceStub(another))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await who_answers(draft_pb2_grpc.DraftServiceStub(one)) == "full"
        await one.close()
        stub = draft_pb2_grpc.DraftServiceStub(another)
        waits = {"wait_for_ready": True, "timeout": LIMIT_S}
        assert (await stub.DescribeDraft(draft_pb2.DescribeDraftRequest(), **waits)).kind == "full"
        await another.close()
