"""No secret of a router shows in its command line, in what it writes, or in what it tells."""

import asyncio

import pytest

import fleet
from fleet import target_worker
from key_files import digest, key, write_keys
from processes import command_line, serve
from redis_server import redis_server
from slipstream.client import AsyncClient
from slipstream.core.errors import Unauthenticated
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1 import generation_pb2_grpc

TOKEN, WRONG, PASSWORD = "slip_the-right-token", "slip_a-wrong-token", "the-redis-password"
SECRETS = (TOKEN, WRONG, PASSWORD, digest(TOKEN), digest(WRONG))


async def said_of_itself(address):
    """GetServerInfo as it is on the wire."""
    async with connect(address, ChannelOptions()) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        shown = (("authorization", f"Bearer {TOKEN}"),)
        answer = await stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=shown)
        return answer.SerializeToString()


async def used(address, server):
    """Requests with tokens right and wrong, and with a store that turns the router away."""
    async with AsyncClient(address, token=WRONG, retries=False) as stranger:
        with pytest.raises(Unauthenticated) as refused:
            await stranger.generate("hello", max_tokens=3)
    async with AsyncClient(address, token=TOKEN, retries=False) as client:
        await client.generate("hello", max_tokens=3)
        server.call("config", "set", "requirepass", "another", password=PASSWORD)
        server.call("client", "kill", "type", "normal", password="another")
        await client.generate("hello", max_tokens=3)
    return str(refused.value)


async def test_secrets_stay_where_they_are(tmp_path):
    keys = write_keys(tmp_path / "keys.toml", key("alice", TOKEN, requests_per_minute=99))
    target = target_worker(fleet.save_models(tmp_path))
    with redis_server("--requirepass", PASSWORD) as server:
        async with fleet.running(target):
            flags = ["--address", "127.0.0.1:0", "--targets", target.address]
            flags += ["--key-file", str(keys), "--store-url", server.url]
            env = {"SLIPSTREAM_ROUTER_STORE_PASSWORD": PASSWORD}
            with serve("router", *flags, env=env) as process:
                address = await asyncio.to_thread(process.ready)
                refusal = await used(address, server)
                await asyncio.to_thread(process.until_logged, "password")
                told = await said_of_itself(address)
                started_as = command_line(process.pid)
    said = "\n".join([refusal, started_as, *process.out, *process.err])
    assert str(keys) in started_as
    assert '"store_password": "***"' in said
    assert [secret for secret in SECRETS if secret in said or secret.encode() in told] == []
