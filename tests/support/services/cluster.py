"""The three services of one cluster on the loop of one background thread, for tests that block."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from slipstream.client import AsyncClient
from slipstream.core.policy.options import EAGLE
from slipstream.options import build
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from support.services import fleet
from support.services.background import LoopThread


class Cluster:
    """A target, drafts and a router, all of them real. `start` and `stop` on one loop."""

    def __init__(self, model: Path, drafts: tuple[str, ...], router: dict[str, Any]) -> None:
        states = (0, 1, 2) if any(draft.startswith(EAGLE) for draft in drafts) else ()
        self.target = fleet.target_worker(model, hidden_layers=states)
        self.drafts = [fleet.draft_worker(draft, model) for draft in drafts]
        self._router = router
        self._stack = AsyncExitStack()
        self.address = ""

    def client(self) -> AsyncClient:
        """Return a client of the router, which tries nothing twice."""
        return AsyncClient(self.address, retries=False)

    async def start(self) -> None:
        """Load the models and serve; returns once a target is ready."""
        await self._stack.enter_async_context(fleet.running(self.target, *self.drafts))
        drafts = tuple(draft.address for draft in self.drafts)
        replicas = {"targets": (self.target.address,), "drafts": drafts}
        router = Router(build(RouterConfig, address="127.0.0.1:0", **replicas, **self._router))
        self.address = f"127.0.0.1:{await router.start()}"
        self._stack.push_async_callback(router.stop, 0)
        await router.ready()

    async def stop(self) -> None:
        await self._stack.aclose()


@contextmanager
def running(model: Path, *drafts: str, **router: Any) -> Iterator[Cluster]:
    """A cluster that serves `model`; `router` are fields of its `RouterConfig`.
    A busy machine makes no draft late and no replica lost."""
    config = {**fleet.PATIENT, **router}
    cluster, thread = Cluster(model, drafts, config), LoopThread()
    try:
        thread.run(cluster.start)
        yield cluster
    finally:
        thread.run(cluster.stop)
        thread.close()
