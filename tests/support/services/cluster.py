"""The three services of one cluster on the loop of one background thread, for tests that block."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from slipstream.client import AsyncClient
from support.services import fleet
from support.services.background import LoopThread


class Cluster:
    """A target, drafts and a router, all of them real. `start` and `stop` on one loop."""

    def __init__(self, model: Path, drafts: tuple[str, ...], router: dict[str, Any]) -> None:
        self.target = fleet.target_worker(model)
        self.drafts = [fleet.draft_worker(draft, model) for draft in drafts]
        self._router = router
        self._stack = AsyncExitStack()
        self.address = ""

    def client(self) -> AsyncClient:
        """Return a client of the router, which tries nothing twice."""
        return AsyncClient(self.address, retries=False)

    async def start(self) -> None:
        """Load the models and serve; returns once all are ready."""
        await self._stack.enter_async_context(fleet.running(self.target, *self.drafts))
        routed = fleet.routed([self.target], self.drafts, **self._router)
        self.address = (await self._stack.enter_async_context(routed)).address

    async def stop(self) -> None:
        await self._stack.aclose()


@contextmanager
def running(model: Path, *drafts: str, **router: Any) -> Iterator[Cluster]:
    """A cluster that serves `model`; `router` are fields of its `RouterConfig`."""
    cluster, thread = Cluster(model, drafts, router), LoopThread()
    try:
        thread.run(cluster.start)
        yield cluster
    finally:
        thread.run(cluster.stop)
        thread.close()
