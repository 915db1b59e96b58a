"""Laws of every server: errors keep their names over the wire, health tells, the end is gentle."""

import asyncio
import re
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from slipstream.core import errors
from slipstream.rpc.channel import ChannelOptions, check_address, connect
from slipstream.rpc.server import MAX_METADATA_BYTES, Server, ServerOptions
from slipstream.rpc.status import error_from
from slipstream.rpc.v1 import draft_pb2, draft_pb2_grpc
from support.network.ports import free_port
from support.network.streams import refusal

NAME = "slipstream.rpc.v1.DraftService"


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


@asynccontextmanager
async def serving(servicer, **options):
    """A server of this, and a channel to it."""
    add = draft_pb2_grpc.add_DraftServiceServicer_to_server
    server = Server(ServerOptions(**options), {NAME: lambda at: add(servicer, at)})
    async with connect(f"127.0.0.1:{await server.start()}", ChannelOptions()) as channel:
        yield server, channel
    await server.stop(0)


def describe(channel, **options):
    stub = draft_pb2_grpc.DraftServiceStub(channel)
    return stub.DescribeDraft(draft_pb2.DescribeDraftRequest(), **options)


async def test_an_error_without_a_name_is_shown_by_its_code_and_bugs_stay_inside(caplog):
    async with serving(Failing(RuntimeError("a secret of the inside"))) as (_, channel):
        error = error_from(await refusal(describe(channel)))
    assert type(error) is errors.InternalError
    assert "secret" not in str(error)
    assert "a secret of the inside" in caplog.text


STATUS = health_pb2.HealthCheckResponse


async def test_a_server_of_what_is_broken_says_so_stops_and_fails(caplog):
    is_broken = asyncio.Event()

    async def broken():
        await is_broken.wait()
        return "8 steps in a row have failed"

    async with serving(Failing(errors.NotBuilt("no"))) as (server, channel):
        stopped = asyncio.create_task(server.serve_until_stopped(broken=broken))
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME))
        first = await watch.read()
        is_broken.set()
        second = await watch.read()
        with pytest.raises(errors.InternalError, match="8 steps in a row"):
            await stopped
    assert (first.status, second.status) == (STATUS.SERVING, STATUS.NOT_SERVING)
    assert "8 steps in a row have failed" in caplog.text


async def test_a_plaintext_port_serves_health_and_nothing_else():
    health = f"127.0.0.1:{free_port()}"
    async with (
        serving(Failing(errors.NotBuilt("no")), health_address=health) as (server, _),
        connect(health, ChannelOptions()) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        await server.set_serving(False)
        waits = await stub.Check(health_pb2.HealthCheckRequest())
        lives = await stub.Check(health_pb2.HealthCheckRequest(service="live"))
        refused = await refusal(describe(channel))
    assert (answer.status, waits.status) == (STATUS.SERVING, STATUS.NOT_SERVING)
    assert lives.status == STATUS.SERVING
    assert refused.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_cut_off_has_given_back_what_it_held_before_the_end():
    servicer = Failing(None)
    async with serving(servicer) as (server, channel):
        call = describe(channel)
        await servicer.entered.wait()
        await server.stop(0)
        assert servicer.has_left
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call


async def test_reflection_lists_the_service():
    async with serving(Failing(errors.NotBuilt("no"))) as (_, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            names = {service.name for service in answer.list_services_response.service}
    assert {NAME, "grpc.health.v1.Health"} <= names


async def test_a_message_above_the_limit_is_refused_and_the_server_goes_on():
    large = draft_pb2.SpeculateRequest(propose=draft_pb2.Propose())
    large.propose.delta.tokens.extend(range(4096))
    async with serving(Failing(errors.NotBuilt("no")), max_message_bytes=1024) as (_, channel):
        call = draft_pb2_grpc.DraftServiceStub(channel).Speculate(iter([large]))
        told = error_from(await refusal(call.read()))
        after = await refusal(describe(channel))
    assert type(told) is errors.RequestTooLarge
    assert re.fullmatch(r"the request is a message of \d+ bytes, but the limit is 1024", str(told))
    assert after.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_above_the_limit_is_refused_and_the_server_goes_on():
    async with serving(Failing(errors.NotBuilt("no"))) as (_, channel):
        codes = []
        for size in (MAX_METADATA_BYTES, MAX_METADATA_BYTES // 2):
            told = (("x-told", "a" * size),)
            codes.append((await refusal(describe(channel, metadata=told))).code())
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED]


async def test_calls_above_the_limit_of_a_connection_wait_at_the_caller():
    servicer, check = Failing(None), health_pb2.HealthCheckRequest()
    address = f"127.0.0.1:{free_port()}"
    async with (
        serving(servicer, max_streams=1, address=address) as (_, one),
        connect(address, ChannelOptions()) as two,
    ):
        first = describe(one)
        async with asyncio.timeout(20):
            await servicer.entered.wait()
        late = await refusal(health_pb2_grpc.HealthStub(one).Check(check, timeout=0.3))
        other = await health_pb2_grpc.HealthStub(two).Check(check)
        servicer.may_go.set()
        assert (await first).kind == "slow"
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert other.status == STATUS.SERVING


@pytest.mark.parametrize("method", ["DescribeDraft", "Speculate"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(method):
    async with serving(Failing(errors.NotBuilt("no"))) as (_, channel):
        refused = await refusal(
            channel.stream_stream(f"/{NAME}/{method}")(iter([b"\xff\xff\xff"])).read()
        )
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "3 bytes" in refused.details()


@pytest.mark.parametrize(
    ("error", "wait_ms", "wait_s"),
    [
        (errors.CapacityError("full"), "500", None),
        (errors.LimitExceeded("used up", retry_after_s=12.3451), "12346", 12.346),
        (errors.LimitExceeded("used up"), "500", 0.5),
    ],
)
async def test_a_client_that_is_refused_for_now_gets_a_retry_time(error, wait_ms, wait_s):
    async with serving(Failing(error)) as (_, channel):
        refused = await refusal(describe(channel))
    assert ("grpc-retry-pushback-ms", wait_ms) in tuple(refused.trailing_metadata())
    assert getattr(error_from(refused), "retry_after_s", None) == wait_s


@pytest.mark.parametrize("address", ["", "here", ":1", "host:", "host:0", "host:70000", "a b:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(errors.InvalidRequest, match="HOST:PORT"):
        check_address(address)
