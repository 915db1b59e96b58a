"""Who leaves an HTTP request, stops its front, or traces it: nothing is lost, and nothing stays."""

import asyncio
import signal
import ssl
import time
from contextlib import suppress

import httpx2
import openai
import pytest

from slipstream.client import AsyncClient, Client, errors
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.telemetry.traces import find_trace, read_spans
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.server import Gateway
from support.network.bad_routers import Failing, Scripted, first_chunk, register
from support.network.certificates import certificates
from support.services import fleet
from support.services.background import served
from support.services.fleet import eventually, routed, target_worker
from support.services.http_front import HELLO, async_client_of, client_of, fronted, post
from support.services.processes import has_loaded, up

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("waits", ["not at all", "until it runs", "until it has written"])
async def test_a_turn_that_was_left_is_no_part_of_its_session(router, url, is_stream, waits):
    """Twice, one left right after the other: the turn before them goes on at once."""
    asked = {"model": "tiny", "max_output_tokens": 6, "temperature": 0}
    long = {**asked, "input": "more", "max_output_tokens": 1900, "stream": is_stream}
    async with async_client_of(url) as client, AsyncClient(router.address) as sdk:
        create = client.responses.create
        clean, first = [await create(**asked, input="hi") for _ in range(2)]
        then = await create(**asked, input="then", previous_response_id=clean.id)
        for _ in range(2):
            left = asyncio.create_task(
                read_all(client, waits, **long, previous_response_id=first.id)
            )
            if waits == "not at all":
                await asyncio.sleep(0.02)
            else:
                await runs(sdk, router.target, waits)
            left.cancel()
            await asyncio.wait({left})
        answer = await create(**asked, input="then", previous_response_id=first.id)
        assert answer.output_text == then.output_text
        assert answer.usage.input_tokens == then.usage.input_tokens
        with pytest.raises(openai.ConflictError, match="has gone on since"):
            await create(**asked, input="x", previous_response_id=first.id)
        await eventually(sdk.server_info, lambda info: info.num_requests == 0)


async def read_all(client, waits, **asked):
    answer = await client.responses.create(**asked)
    if asked["stream"]:
        async for _ in answer:
            pass


async def runs(sdk, target, waits):
    await eventually(sdk.server_info, lambda info: info.num_requests == 1)
    if waits == "until it has written":
        before = (await target.load()).num_rounds
        await eventually(target.load, lambda load: load.num_rounds > before + 5)


async def test_a_front_that_runs_out_of_grace_ends_its_requests_at_the_router(folder):
    target = target_worker(folder)
    async with fleet.running(target), routed([target]) as sdk:
        gateway = Gateway(HttpConfig(sdk.address, "127.0.0.1:0"))
        async with async_client_of(f"http://{await gateway.start()}") as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=3500, seed=1, stream=True
            )
            await anext(stream)
            await gateway.stop(0)
            await eventually(sdk.server_info, lambda info: info.num_requests == 0)
            with pytest.raises(openai.APIConnectionError):
                [part async for part in stream]


def test_up_with_http_starts_a_front_that_ends_after_what_runs(model, tmp_path):
    traces = tmp_path / "traces"
    flags = "--http", "0", "--traces", str(traces)
    with up(model, "ngram", *flags) as process, Client(process.ready()) as sdk:
        line = process.until_logged("/v1 is a client of")
        assert line.startswith("http   |")
        url = line.split()[-6].removesuffix("/v1")
        assert not has_loaded(process.child("gateway"), "torch")
        expected = sdk.generate("hello", raw=True, max_tokens=300)
        with client_of(url) as client:
            stream = client.completions.create(
                model="tiny", prompt="hello", max_tokens=300, temperature=0, stream=True
            )
            parts = [next(stream)]
            process.signal(signal.SIGTERM)
            process.until_logged("stopping: requests in flight")
            parts += list(stream)
        assert "".join(part.choices[0].text for part in parts) == expected.text
        assert parts[-1].choices[0].finish_reason == expected.finish_reason
        assert process.wait() == 0
    request_id = parts[0].id.removeprefix("cmpl-")
    found = find_trace(read_spans(traces), request_id)
    services = {span.service.removeprefix("slipstream-") for span in found.spans}
    assert (services, found.orphans) == ({"http", "router", "target"}, ())


def test_a_callers_trace_goes_on_to_the_router():
    hearing = Scripted(first_chunk(), pb.GenerateStreamResponse(finish=pb.FinishInfo(reason=1)))
    with served(register(hearing)) as address, fronted(address) as url:
        post(url, {"messages": HELLO, "stream": True}, traceparent=PARENT, tracestate="vendor=1")
        assert hearing.metadata["traceparent"] == PARENT
        assert hearing.metadata["tracestate"] == "vendor=1"
        post(url, {"messages": HELLO, "stream": True})
        assert "traceparent" not in hearing.metadata


def test_a_front_serves_https_and_dials_its_router_with_tls(tmp_path):
    made = certificates(tmp_path)
    trusted = ssl.create_default_context(cafile=made.ca)
    https = {"tls_cert": made.cert("router"), "tls_key": made.key("router")}
    guarded = ServerOptions(tls=made.server("router", is_mutual=False))
    with served(register(Failing(errors.PromptTooLong("too long"))), guarded) as address:
        with fronted(address, peer_ca=made.ca, **https) as url:
            assert url.startswith("https://")
            answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "x"}, verify=trusted)
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            with pytest.raises(httpx2.ConnectError):
                httpx2.get(f"{url}/health")
            other = certificates(tmp_path / "other")
            made.replace(other, "router.pem", "router.key")
            renewed = ssl.create_default_context(cafile=other.ca)
            assert until_trusted(f"{url}/nowhere", renewed).status_code == 404
        with fronted(address, timeout_s=0.2) as url:
            assert httpx2.get(f"{url}/health").status_code == 503


def until_trusted(url, context):
    """The answer of a front, once it shows a certificate that is trusted."""
    until = time.monotonic() + fleet.LIMIT_S
    while time.monotonic() < until:
        with suppress(httpx2.ConnectError):
            return httpx2.get(url, verify=context)
    raise AssertionError("the certificate stays as it was")
