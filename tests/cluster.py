"""The three services of one cluster on the loop of one background thread, for tests that block."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from background import LoopThread
from slipstream.draft import servicer as draft_service
from slipstream.draft.app import load_draft
from slipstream.draft.config import DraftConfig
from slipstream.models.loading import load_target_parts
from slipstream.router.app import Router
from slipstream.router.config import RouterConfig
from slipstream.rpc.server import Server
from slipstream.target import servicer as target_service
from slipstream.target.build import build_target
from slipstream.target.config import TargetConfig
from slipstream.target.describe import describe

ADDRESS = "127.0.0.1:0"


class Cluster:
    """One target, one draft and a router, all of them real. `load` and `start` on the same loop."""

    def __init__(self, model: Path, draft: str, router: dict[str, Any]) -> None:
        self._target = TargetConfig(model=str(model), dtype="float32", address=ADDRESS)
        self._draft = DraftConfig(
            draft=draft, target_model=str(model), dtype="float32", address=ADDRESS
        )
        self._router = router
        self._stack = AsyncExitStack()
        self.address = self.target_address = self.draft_address = ""
        self.target: target_service.TargetServicer
        self.draft: draft_service.DraftServicer

    async def start(self) -> None:
        """Load the models and serve; returns once a target is ready."""
        stack = self._stack
        loaded = load_target_parts(self._target.model, dtype="float32")
        built = build_target(loaded)
        about = describe(loaded, built, max_sessions=self._target.max_sessions)
        self.target = target_service.TargetServicer(
            built.target, about, self._target.lease_limits()
        )
        stack.push_async_callback(self.target.close)
        registered = {target_service.SERVICE: target_service.register(self.target)}
        targets = await self._serve(Server(self._target.server_options(), registered))
        self.target_address = targets
        self.target.advertise(targets)
        self.draft = load_draft(self._draft)
        stack.push_async_callback(self.draft.close)
        registered = {draft_service.SERVICE: draft_service.register(self.draft)}
        drafts = await self._serve(Server(self._draft.server_options(), registered))
        self.draft_address = drafts
        router = Router(
            RouterConfig(address=ADDRESS, targets=(targets,), drafts=(drafts,), **self._router)
        )
        self.address = f"127.0.0.1:{await router.start()}"
        stack.push_async_callback(router.stop, 0)
        await router.ready()

    async def stop(self) -> None:
        """End all three."""
        await self._stack.aclose()

    async def _serve(self, server: Server) -> str:
        port = await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return f"127.0.0.1:{port}"


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
