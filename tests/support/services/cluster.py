"""The three services of one cluster on the loop of one background thread, for tests that block."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from slipstream.options import build
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig
from support.services import fleet
from support.services.background import LoopThread


class Cluster:
    """One target, one draft and a router, all of them real. `start` and `stop` on one loop."""

    def __init__(self, model: Path, draft: str, router: dict[str, Any]) -> None:
        self._target = fleet.target_worker(model)
        self._draft = fleet.draft_worker(draft, model)
        self._router = router
        self._stack = AsyncExitStack()
        self.address = ""

    @property
    def workers(self) -> tuple[fleet.Worker, fleet.Worker]:
        """Return the target and the draft."""
        return self._target, self._draft

    @property
    def target_address(self) -> str:
        return self._target.address

    @property
    def draft_address(self) -> str:
        return self._draft.address

    async def start(self) -> None:
        """Load the models and serve; returns once a target is ready."""
        await self._stack.enter_async_context(fleet.running(self._target, self._draft))
        replicas = {"targets": (self.target_address,), "drafts": (self.draft_address,)}
        router = Router(build(RouterConfig, address="127.0.0.1:0", **replicas, **self._router))
        self.address = f"127.0.0.1:{await router.start()}"
        self._stack.push_async_callback(router.stop, 0)
        await router.ready()

    async def stop(self) -> None:
        """End all three."""
        await self._stack.aclose()


@contextmanager
def running(model: Path, draft: str, **router: Any) -> Iterator[Cluster]:
    """A cluster that serves `model`; `router` are fields of its `RouterConfig`."""
    cluster, thread = Cluster(model, draft, router), LoopThread()
    try:
        thread.run(cluster.start)
        yield cluster
    finally:
        thread.run(cluster.stop)
        thread.close()
