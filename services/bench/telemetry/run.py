"""What telemetry costs: the same requests through services that tell and services that don't.

While those that tell are asked, their pages are read too. Prints nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from slipstream.bench.pairs.plan import PairPlan
from slipstream.bench.pairs.run import Around, pair_figures, run_pairs
from slipstream.bench.telemetry.scraping import Scraper
from slipstream.bench.telemetry.stacks import OFF, ON, telling, two_stacks
from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest
from slipstream.local.stack import StackPlan
from slipstream.telemetry.receiver import Received, receiver


@dataclass(frozen=True, slots=True)
class Told:
    """How much is told, and to whom."""

    ratio: float = 0.1
    """Share of requests that are traced."""
    endpoint: str | None = None
    """Of an OTLP/gRPC collector; None is one that only counts."""
    settle_s: float = 6.0
    """After a run, for what it has left to send: batches of spans leave every 5 seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InvalidRequest(f"trace_ratio is {self.ratio}, but must be from 0 to 1")
        if not 0 <= self.settle_s <= 3600:
            raise InvalidRequest(f"settle_s is {self.settle_s:g}, but must be from 0 to 3600")


async def run_telemetry(
    plan: PairPlan, told: Told, services: StackPlan, *, advance: Callable[[str], None]
) -> dict[str, Any]:
    """Figures of a plan whose routers are those of `OFF` and `ON`.

    Raises what keeps the services from starting.
    """
    received = Received()
    async with AsyncExitStack() as opened:
        endpoint = told.endpoint
        if endpoint is None:
            endpoint = await opened.enter_async_context(receiver(received))
        plans = {OFF: services, ON: telling(services, endpoint, ratio=told.ratio)}
        async with two_stacks(plans) as stacks:
            scraper = Scraper(stacks.pages)
            async with _clients(stacks.routers) as clients:
                around = _around(scraper, told.settle_s)
                runs = await run_pairs(plan, clients, advance=advance, around=around)
    exported = _exported(received) if told.endpoint is None else None  # all is sent by now
    return pair_figures(plan, runs) | {"exported": exported, "scraped": _scraped(scraper)}


@asynccontextmanager
async def _clients(routers: dict[str, str]) -> AsyncIterator[dict[str, AsyncClient]]:
    async with AsyncExitStack() as opened:
        yield {
            name: await opened.enter_async_context(AsyncClient(address))
            for name, address in routers.items()
        }


def _around(scraper: Scraper, settle_s: float) -> Around:
    """Those who are not asked are left alone, and have nothing to do."""

    @asynccontextmanager
    async def beside(name: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as reading:
            if name == ON:
                await reading.enter_async_context(scraper.reading())
            yield
        await asyncio.sleep(settle_s)

    return beside


def _exported(received: Received) -> dict[str, int]:
    return {
        "num_spans": received.num_spans,
        "num_traces": received.num_traces,
        "num_points": received.num_points,
        "num_metrics": received.num_metrics,
    }


def _scraped(scraper: Scraper) -> dict[str, int]:
    return {
        "num_pages": scraper.num_pages,
        "num_samples": scraper.num_samples,
        "num_failed": scraper.num_failed,
    }
