"""`python -m fuzz.record`: records the calls of real traffic into `corpus/recorded.json`.

Between the services are proxies that keep what passes. What differs from run to run is replaced by
what stands for it; see `case`.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio

from fuzz.case import CORPUS, INCARNATION, TARGET, Case, save
from fuzz.methods import METHODS
from slipstream.client import AsyncClient, Mode, SamplingParams, SpeculationOptions, Verification
from support.services import fleet

_PER_METHOD = 12
_MAX_PARTS = 5
_MAX_BYTES = 2_000
"""Of one call: what comes later in a long one is like what came before."""
FORCED = SpeculationOptions(mode=Mode.FORCED)
MCSD = SpeculationOptions(mode=Mode.FORCED, verification=Verification.MCSD)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Recorder(grpc.GenericRpcHandler):
    """A proxy of one service that keeps the messages of each call."""

    def __init__(self, upstream: str, calls: list[tuple[str, list[bytes]]]) -> None:
        self._channel = grpc.aio.insecure_channel(upstream)
        self._calls = calls
        self._server = grpc.aio.server(handlers=[self])

    async def start(self) -> str:
        """Listen; the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """End calls and connections."""
        await self._server.stop(0)
        await self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """See `grpc.GenericRpcHandler`. A stream of messages stands for one message, too."""
        path = details.method

        async def forward(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
            kept: list[bytes] = []
            self._calls.append((path.rpartition("/")[2], kept))

            async def keeping() -> AsyncIterator[bytes]:
                async for message in messages:
                    kept.append(message)
                    yield message

            async for answer in self._channel.stream_stream(path)(keeping()):
                yield answer

        return grpc.stream_stream_rpc_method_handler(forward)


async def traffic(address: str) -> None:
    """Requests of every kind."""
    async with AsyncClient(address, retries=False) as client:
        await client.models()
        await client.server_info()
        for options in (FORCED, MCSD, SpeculationOptions(), SpeculationOptions(mode=Mode.OFF)):
            sampling = SamplingParams(0.8, seed=3, top_p=0.9, logit_bias=((0, -100.0),))
            await client.generate("hello", max_tokens=8, speculation=options, sampling=sampling)
        await client.generate("a number", max_tokens=12, json_schema=SCHEMA, logprobs=2)
        async for _ in client.stream("ab ab ab", max_tokens=12, regex="[a-c]{3,9}", stop=["zz"]):
            pass
        ids = await client.tokenize([{"role": "user", "content": "hi"}])
        await client.detokenize(ids)
        async with client.session() as session:
            await session.generate("one", max_tokens=6, speculation=FORCED)
            async for _ in session.stream("two", max_tokens=6, speculation=FORCED):
                pass


async def record(folder: Path) -> list[Case]:
    """Run the services with proxies between them; the calls that were made."""
    calls: list[tuple[str, list[bytes]]] = []
    model = fleet.save_models(folder)
    target = fleet.target_worker(model)
    draft = fleet.draft_worker(str(fleet.glide_of(model)), model)
    async with AsyncExitStack() as stack:

        async def proxied(upstream: str) -> str:
            recorder = Recorder(upstream, calls)
            stack.push_async_callback(recorder.stop)
            return await recorder.start()

        await stack.enter_async_context(fleet.running(target, draft))
        ends = [await proxied(worker.address) for worker in (target, draft)]
        servicer: Any = target._running[1]
        servicer.advertise(ends[0])
        client = await stack.enter_async_context(fleet.routed(ends[:1], ends[1:]))
        await fleet.until(client, lambda info: fleet.num_ready(info, "draft") == 1)
        await traffic(await proxied(client.address))
    names = {servicer.about.identity.incarnation: INCARNATION, ends[0]: TARGET}
    return kept(calls, names)


def kept(calls: list[tuple[str, list[bytes]]], names: dict[str, str]) -> list[Case]:
    """Some calls of each method, without what is of this run alone."""
    cases: list[Case] = []
    for method in METHODS.values():
        seen: set[tuple[bytes, ...]] = set()
        for name, messages in calls:
            parts = tuple(_neutral(message, names) for message in messages[:_MAX_PARTS])
            is_new = name == method.name and parts and parts not in seen
            if is_new and sum(map(len, parts)) < _MAX_BYTES and len(seen) < _PER_METHOD:
                seen.add(parts)
                cases.append(Case(method.role, name, "recorded", "answered", parts))
    return cases


def _neutral(message: bytes, names: dict[str, str]) -> bytes:
    for own, neutral in names.items():
        message = message.replace(own.encode(), neutral.encode())
    return message


def main() -> int:
    """Record anew."""
    with tempfile.TemporaryDirectory() as folder:
        cases = asyncio.run(record(Path(folder)))
    save(CORPUS / "recorded.json", cases)
    sys.stdout.write(f"{len(cases)} calls\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
