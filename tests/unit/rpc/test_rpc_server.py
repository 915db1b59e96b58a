"""Laws of every server: errors keep their names over the wire, health tells, the end is gentle."""

import asyncio
import re
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from slipstream.core import errors
from slipstream.rpc.channel import ChannelOptions, check_address, connect
from slipstream.rpc.server import MAX_METADATA_BYTES, Server, ServerOptions
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import draft_pb2, draft_pb2_grpc

NAME = "slipstream.rpc.v1.DraftService"
KINDS = """
    UnsupportedCombination RequestTooLarge PromptTooLong InvalidRequest NotBuilt ModelNotFound
    ModelMismatch SessionNotFound SessionExists SessionTaken SessionOutOfSync SessionBusy
    SessionClosed CapacityError Unavailable HandshakeError DeadlineExceeded Cancelled
    InternalError Unauthenticated PermissionDenied
"""


class Failing(draft_pb2_grpc.DraftServiceServicer):
    """Raises what it was made with, from a single answer and from a stream of them."""

    def __init__(self, error):
        self.error = error
        self.entered = asyncio.Event()
        self.may_go = asyncio.Event()
        self.has_left = False

    async def DescribeDraft(self, request, context):
        if self.error is None:
            self.entered.set()
            try:
                await self.may_go.wait()
            finally:
                await asyncio.sleep(0.1)
                self.has_left = True
            return draft_pb2.DescribeDraftResponse(kind="slow")
        raise self.error

    async def Speculate(self, requests, context):
        async for _ in requests:
            yield draft_pb2.SpeculateResponse(parked=draft_pb2.Parked())
            raise self.error


async def serving(servicer, **options):
    server = Server(
        ServerOptions(**options),
        {NAME: lambda at: draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, at)},
    )
    return server, f"127.0.0.1:{await server.start()}"


@pytest.mark.parametrize("name", KINDS.split())
async def test_an_error_is_the_same_on_the_other_side(name):
    kind = getattr(errors, name)
    server, address = await serving(Failing(kind("seven is 8, but must be 7")))
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as single:
            await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
        call = stub.Speculate(iter([draft_pb2.SpeculateRequest()]))
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            async for _ in call:
                pass
    await server.stop(0)
    for caught in (single.value, stream.value):
        error = error_from(caught)
        assert type(error) is kind
        assert str(error) == "seven is 8, but must be 7"


async def test_an_error_without_a_name_is_told_by_its_code_and_bugs_stay_inside(caplog):
    server, address = await serving(Failing(RuntimeError("a secret of the inside")))
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
    await server.stop(0)
    error = error_from(caught.value)
    assert type(error) is errors.InternalError
    assert "secret" not in str(error)
    assert "a secret of the inside" in caplog.text


async def test_health_is_watched_from_serving_to_the_drain():
    server, address = await serving(Failing(errors.NotBuilt("no")))
    async with connect(address, ChannelOptions()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME))
        first = await watch.read()
        await server.drain()
        second = await watch.read()
        watch.cancel()
    await server.stop(0)
    status = health_pb2.HealthCheckResponse
    assert (first.status, second.status) == (status.SERVING, status.NOT_SERVING)


async def test_a_server_of_what_is_broken_says_so_stops_and_fails(caplog):
    server, address = await serving(Failing(errors.NotBuilt("no")))
    is_broken = asyncio.Event()

    async def broken():
        await is_broken.wait()
        return "8 steps in a row have failed"

    stopped = asyncio.create_task(server.serve_until_stopped(broken=broken))
    async with connect(address, ChannelOptions()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME))
        first = await watch.read()
        is_broken.set()
        second = await watch.read()
        with pytest.raises(errors.InternalError, match="8 steps in a row"):
            await stopped
    status = health_pb2.HealthCheckResponse
    assert (first.status, second.status) == (status.SERVING, status.NOT_SERVING)
    assert "8 steps in a row have failed" in caplog.text


async def test_a_plaintext_port_serves_health_and_nothing_else():
    with socket.create_server(("127.0.0.1", 0)) as free:
        health = f"127.0.0.1:{free.getsockname()[1]}"
    server, _ = await serving(Failing(errors.NotBuilt("no")), health_address=health)
    async with connect(health, ChannelOptions()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        await server.set_serving(False)
        waits = await stub.Check(health_pb2.HealthCheckRequest())
        lives = await stub.Check(health_pb2.HealthCheckRequest(service="live"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await draft_pb2_grpc.DraftServiceStub(channel).DescribeDraft(
                draft_pb2.DescribeDraftRequest()
            )
    await server.stop(0)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert waits.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert lives.status == health_pb2.HealthCheckResponse.SERVING
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_in_flight_is_finished_before_the_end():
    servicer = Failing(None)
    server, address = await serving(servicer)
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        call = stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
        waiting = asyncio.ensure_future(call)
        await servicer.entered.wait()
        stopping = asyncio.ensure_future(server.stop(30))
        servicer.may_go.set()
        assert (await waiting).kind == "slow"
        await stopping


async def test_a_call_that_is_cut_off_has_given_back_what_it_held_before_the_end():
    servicer = Failing(None)
    server, address = await serving(servicer)
    async with connect(address, ChannelOptions()) as channel:
        call = draft_pb2_grpc.DraftServiceStub(channel).DescribeDraft(
            draft_pb2.DescribeDraftRequest()
        )
        await servicer.entered.wait()
        await server.stop(0)
        assert servicer.has_left
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call


async def test_who_watches_health_does_not_keep_a_server_from_ending():
    server, address = await serving(Failing(errors.NotBuilt("no")))
    async with connect(address, ChannelOptions()) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        async with asyncio.timeout(10):
            await server.stop(3600)
        watch.cancel()


async def test_reflection_lists_the_service():
    server, address = await serving(Failing(errors.NotBuilt("no")))
    async with connect(address, ChannelOptions()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            names = {service.name for service in answer.list_services_response.service}
    await server.stop(0)
    assert {NAME, "grpc.health.v1.Health"} <= names


async def test_a_message_above_the_limit_is_refused_and_the_server_goes_on():
    server, address = await serving(Failing(errors.NotBuilt("no")), max_message_bytes=1024)
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        large = draft_pb2.SpeculateRequest(propose=draft_pb2.Propose())
        large.propose.delta.tokens.extend(range(4096))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Speculate(iter([large])):
                pass
        with pytest.raises(grpc.aio.AioRpcError) as after:
            await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
    await server.stop(0)
    told = error_from(caught.value)
    assert type(told) is errors.RequestTooLarge
    assert re.fullmatch(r"the request is a message of \d+ bytes, but the limit is 1024", str(told))
    assert after.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_above_the_limit_is_refused_and_the_server_goes_on():
    server, address = await serving(Failing(errors.NotBuilt("no")))
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        codes = []
        for size in (MAX_METADATA_BYTES, MAX_METADATA_BYTES // 2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                told = (("x-told", "a" * size),)
                await stub.DescribeDraft(draft_pb2.DescribeDraftRequest(), metadata=told)
            codes.append(caught.value.code())
    await server.stop(0)
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED]


async def test_calls_above_the_limit_of_a_connection_wait_at_the_caller():
    servicer = Failing(None)
    server, address = await serving(servicer, max_streams=1)
    async with connect(address, ChannelOptions()) as one, connect(address, ChannelOptions()) as two:
        first = draft_pb2_grpc.DraftServiceStub(one).DescribeDraft(draft_pb2.DescribeDraftRequest())
        async with asyncio.timeout(20):
            await servicer.entered.wait()
        with pytest.raises(grpc.aio.AioRpcError) as late:
            stub = health_pb2_grpc.HealthStub(one)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=0.3)
        other = await health_pb2_grpc.HealthStub(two).Check(health_pb2.HealthCheckRequest())
        servicer.may_go.set()
        assert (await first).kind == "slow"
    await server.stop(0)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert other.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("limit", ["max_streams", "max_message_bytes", "grace_s"])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(errors.InvalidRequest, match=f"{limit} is -1"):
        ServerOptions(**{limit: -1})


@pytest.mark.parametrize("method", ["DescribeDraft", "Speculate"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(method):
    server, address = await serving(Failing(errors.NotBuilt("no")))
    async with connect(address, ChannelOptions()) as channel:
        call = channel.stream_stream(f"/{NAME}/{method}")(iter([b"\xff\xff\xff"]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
    await server.stop(0)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "3 bytes" in caught.value.details()


@pytest.mark.parametrize(
    ("error", "wait_ms", "wait_s"),
    [
        (errors.CapacityError("full"), "500", None),
        (errors.LimitExceeded("used up", retry_after_s=12.3451), "12346", 12.346),
        (errors.LimitExceeded("used up"), "500", 0.5),
    ],
)
async def test_who_is_refused_for_now_is_told_when_to_come_back(error, wait_ms, wait_s):
    server, address = await serving(Failing(error))
    async with connect(address, ChannelOptions()) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DescribeDraft(draft_pb2.DescribeDraftRequest())
    await server.stop(0)
    assert ("grpc-retry-pushback-ms", wait_ms) in tuple(caught.value.trailing_metadata())
    assert getattr(error_from(caught.value), "retry_after_s", None) == wait_s


async def test_an_address_in_use_is_refused():
    server, address = await serving(Failing(None))
    with pytest.raises(errors.Unavailable, match=address):
        await serving(Failing(None), address=address)
    await server.stop(0)


@pytest.mark.parametrize("address", ["", "here", ":1", "host:", "host:0", "host:70000", "a b:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(errors.InvalidRequest, match="HOST:PORT"):
        check_address(address)
