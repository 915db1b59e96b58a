"""No secret of a router shows in its command line, in what it writes, or in what it tells.
Nor does what callers say show in any service's log."""

import asyncio
import json
import signal
from contextlib import contextmanager

import pytest

from slipstream.client import AsyncClient, Mode, SpeculationOptions
from slipstream.core.errors import ModelNotFound, PromptTooLong, Unauthenticated
from slipstream.rpc.v1 import generation_pb2 as pb
from support.network.key_files import digest, key, write_keys
from support.services import fleet
from support.services.fleet import stub_of, target_worker
from support.services.processes import command_line, serve
from support.state.redis_server import redis_server

TOKEN, WRONG, PASSWORD = "slip_the-right-token", "slip_a-wrong-token", "the-redis-password"
MARKER = "Rosebud-1941"
FORCED = SpeculationOptions(mode=Mode.FORCED)
SECRETS = (TOKEN, WRONG, PASSWORD, digest(TOKEN), digest(WRONG))


async def said_of_itself(address):
    """GetServerInfo as it is on the wire."""
    async with stub_of(address) as stub:
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


async def test_secrets_stay_where_they_are(folder, tmp_path):
    keys = write_keys(tmp_path / "keys.toml", key("alice", TOKEN, requests_per_minute=99))
    target = target_worker(folder)
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


@contextmanager
def json_services(target):
    """Target, draft and router as processes that log all they can, as JSON; the last one's last."""
    told = ["--address", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug"]
    model = ["--dtype", "float32", "--threads", "1"]
    weights = ["--draft", str(fleet.glide_of(target)), "--target-model", str(target)]
    with (
        serve("target", *told, *model, "--model", str(target)) as engine,
        serve("draft", *told, *model, *weights) as draft,
        serve("router", *told, "--targets", engine.ready(), "--drafts", draft.ready()) as router,
    ):
        yield engine, draft, router


async def quoted(address):
    """Requests that say something secret and are answered, refused and left; its token ids."""
    async with AsyncClient(address, retries=False) as client:
        await fleet.until(client, lambda info: fleet.num_ready(info, "draft") == 1)
        asked = {"max_tokens": 24, "stop": [MARKER], "speculation": FORCED}
        answered = await client.generate(f"{MARKER} " * 8, **asked)
        assert answered.stats.speculation.num_draft_tokens > 0
        with pytest.raises(PromptTooLong):
            await client.generate(MARKER * fleet.CONTEXT, max_tokens=24)
        with pytest.raises(ModelNotFound):
            await client.generate("hello", model=MARKER)
        async with client.stream([{"role": "user", "content": MARKER}], max_tokens=999) as chunks:
            await anext(aiter(chunks))
        return await client.tokenize(MARKER, raw=True)


async def test_what_callers_say_is_in_no_line_of_any_log(folder):
    with json_services(folder) as processes:
        ids = await quoted(await asyncio.to_thread(processes[-1].ready))
        for process in reversed(processes):
            process.signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait)
    lines = [line for process in processes for line in process.err]
    services = {json.loads(line)["service"] for line in lines}
    assert services == {f"slipstream-{role}" for role in ("target", "draft", "router")}
    said = "\n".join(lines)
    assert [part for part in (MARKER, ", ".join(map(str, ids))) if part in said] == []
