"""Two routers over one store, and a referee: what sessions are tried on."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from slipstream.client import Client, SamplingParams
from slipstream.rpc.channel import ChannelOptions, connect
from slipstream.rpc.v1 import generation_pb2_grpc
from support.services import fleet
from support.services.background import LoopThread
from support.state.redis_server import RedisServer, redis_server

ENDLESS = {0: -100.0}
"""Bias of the token that would end texts early."""

Tokens = tuple[int, ...]


class World:
    """Two routers, a target, a draft and a store, and the referee. `start`, then `stop`."""

    def __init__(self, model: Path, store: RedisServer) -> None:
        self.store = store
        self._thread = LoopThread()
        self._stack = AsyncExitStack()
        self._plain = Client.embedded(str(model), "none", dtype="float32")
        self._known: dict[tuple[Tokens, int], Tokens] = {}
        self.workers = [
            fleet.target_worker(model),
            fleet.draft_worker(str(fleet.glide_of(model)), model),
        ]
        self.stubs: list[Any] = []
        self.clients: list[Any] = []

    def start(self) -> None:
        """Run all."""
        self._thread.run(self._start)

    def stop(self) -> None:
        """End all."""
        self._thread.run(self._stack.aclose)
        self._thread.close()
        self._plain.close()

    def run(self, make: Any) -> Any:
        """Await what is made on the services' loop."""
        return self._thread.run(make)

    def plain(self, tokens: Tokens, length: int) -> Tokens:
        """What plain decoding says after these tokens."""
        key = (tokens, length)
        if key not in self._known:
            sampling = SamplingParams(logit_bias=tuple(ENDLESS.items()))
            result = self._plain.generate(list(tokens), max_tokens=length, sampling=sampling)
            self._known[key] = result.token_ids
        return self._known[key]

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        await enter(fleet.running(*self.workers))
        target, draft = self.workers
        for _ in range(2):
            options = {
                "store_url": self.store.url,
                "park_ttl_s": 0.2,
                "store_timeout_s": 20.0,
                "store_down": "refuse",
            }
            client = await enter(fleet.routed([target], [draft], **options))
            self.clients.append(client)
            channel = await enter(connect(client.address, ChannelOptions()))
            self.stubs.append(generation_pb2_grpc.GenerationServiceStub(channel))

    async def is_idle(self) -> bool:
        """Whether nothing is held for anybody."""
        loads = [await worker.load() for worker in self.workers]
        infos = [await client.server_info() for client in self.clients]
        held = [load.num_sessions + load.num_parked + load.kv_bytes for load in loads]
        return not sum(held) + sum(info.num_requests for info in infos)


@contextmanager
def world_of(model: Path) -> Iterator[World]:
    """A world that runs."""
    with redis_server() as store:
        world = World(model, store)
        world.start()
        try:
            yield world
        finally:
            world.stop()
