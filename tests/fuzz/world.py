"""Two routers over one store, and a referee: what sessions are tried on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from slipstream.client import Client, SamplingParams
from support.services import fleet
from support.services.background import LoopThread, on_thread
from support.state.redis_server import RedisServer, redis_server

ENDLESS = {0: -100.0}
"""Bias of the token that would end texts early."""

Tokens = tuple[int, ...]


class World:
    """Two routers, a target, a draft and a store, and the referee."""

    def __init__(self, store: RedisServer, referee: Client, thread: LoopThread) -> None:
        self.store, self._plain = store, referee
        self._known: dict[tuple[Tokens, int], Tokens] = {}
        self.run = thread.run
        """Await what is made on the services' loop."""
        self.workers: list[fleet.Worker] = []
        self.stubs: list[Any] = []
        self.clients: list[Any] = []

    def plain(self, tokens: Tokens, length: int) -> Tokens:
        """What plain decoding says after these tokens."""
        key = (tokens, length)
        if key not in self._known:
            sampling = SamplingParams(logit_bias=tuple(ENDLESS.items()))
            result = self._plain.generate(list(tokens), max_tokens=length, sampling=sampling)
            self._known[key] = result.token_ids
        return self._known[key]

    async def is_idle(self) -> bool:
        """Whether nothing is held for anybody."""
        loads = [await worker.load() for worker in self.workers]
        infos = [await client.server_info() for client in self.clients]
        held = [load.num_sessions + load.num_parked + load.kv_bytes for load in loads]
        return not sum(held) + sum(info.num_requests for info in infos)


@contextmanager
def world_of(model: Path) -> Iterator[World]:
    with (
        redis_server() as store,
        Client.embedded(str(model), "none", dtype="float32") as referee,
        on_thread(lambda thread: _started(World(store, referee, thread), model)) as world,
    ):
        yield world


@asynccontextmanager
async def _started(world: World, model: Path) -> AsyncIterator[World]:
    target = fleet.target_worker(model)
    draft = fleet.draft_worker(str(fleet.glide_of(model)), model)
    world.workers = [target, draft]
    options = {"store_url": world.store.url, "store_timeout_s": 20.0, "store_down": "refuse"}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(fleet.running(target, draft))
        for _ in range(2):
            routed = fleet.routed([target], [draft], park_ttl_s=0.2, **options)
            client = await stack.enter_async_context(routed)
            world.clients.append(client)
            world.stubs.append(await stack.enter_async_context(fleet.stub_of(client.address)))
        yield world
