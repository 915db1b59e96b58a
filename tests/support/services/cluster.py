"""The three services of one cluster on the loop of one background thread, for tests that block."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.client import AsyncClient
from slipstream.core.policy.options import EAGLE
from support.services import fleet
from support.services.background import on_thread


@dataclass(frozen=True)
class Cluster:
    """A target, drafts and a router, all of them real, and where the router serves."""

    target: fleet.Worker
    drafts: list[fleet.Worker]
    address: str

    def client(self) -> AsyncClient:
        """Return a client of the router, which tries nothing twice."""
        return AsyncClient(self.address, retries=False)


@contextmanager
def running(model: Path, *drafts: str, **router: Any) -> Iterator[Cluster]:
    """A cluster that serves `model`; `router` are fields of its `RouterConfig`."""
    with on_thread(lambda _: _serving(model, drafts, router)) as cluster:
        yield cluster


@asynccontextmanager
async def _serving(
    model: Path, drafts: tuple[str, ...], config: dict[str, Any]
) -> AsyncIterator[Cluster]:
    states = (0, 1, 2) if any(draft.startswith(EAGLE) for draft in drafts) else ()
    target = fleet.target_worker(model, hidden_layers=states)
    workers = [fleet.draft_worker(draft, model) for draft in drafts]
    async with (
        fleet.running(target, *workers),
        fleet.router_over([target], workers, **config) as address,
    ):
        yield Cluster(target, workers, address)
