"""A router put together: replicas, sessions and the public API in one process."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import product
from typing import Any, cast

from slipstream.core.breaker import Breakers
from slipstream.core.inline import before
from slipstream.core.request.server_info import ReplicaRole, ReplicaState
from slipstream.ngrams.store_file import NgramStores
from slipstream.rpc.channel import Dialer
from slipstream.rpc.server import Server
from slipstream.rpc.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from slipstream.state.access import Access
from slipstream.state.factory import open_quotas, open_store
from slipstream.state.session_leases import SessionLeases
from slipstream.state.store import SessionStore
from slipstream.telemetry import catalog
from slipstream.telemetry.metric import Instruments, Telemetry
from slipstream_router.config import RouterConfig
from slipstream_router.lease_keeper import LeaseKeeper
from slipstream_router.limits import Admission
from slipstream_router.replicas.fleet import Fleet
from slipstream_router.replicas.pool import Pool, Sources
from slipstream_router.replicas.probes import DraftProbe, TargetProbe
from slipstream_router.replicas.replica import Hooks
from slipstream_router.request_runner import RequestRunner
from slipstream_router.request_telemetry import RouterTelemetry, WatchedStore
from slipstream_router.servicer import SERVICE, GenerationServicer

_LOG = logging.getLogger("slipstream.router")


class Router:
    """`start` it, then `serve` or `stop`."""

    def __init__(self, config: RouterConfig, telemetry: Telemetry | None = None) -> None:
        """`telemetry` records nothing by default."""
        self._config = config
        self._telemetry = telemetry or Telemetry()
        self._request_telemetry = RouterTelemetry(self._telemetry)
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        breakers = Breakers(time.monotonic)
        hooks = Hooks(on_change=self._changed.set, forget=breakers.forget)
        self._sources = Sources(config.targets, config.drafts, config.store)
        self._target_probe = TargetProbe()
        beat = config.heartbeat
        to_targets, to_drafts = Dialer(config.to_targets()), Dialer(config.to_drafts())
        targets, drafts = self._sources.targets, self._sources.drafts
        self._targets = Pool(targets, self._target_probe, to_targets, heartbeat=beat, hooks=hooks)
        self._drafts = Pool(drafts, DraftProbe(), to_drafts, heartbeat=beat, hooks=hooks)
        self._fleet = Fleet(
            self._targets,
            self._drafts,
            breakers=breakers,
            expects_drafts=bool(config.drafts),
            drafter=config.drafter,
        )
        self._admission = Admission(config.max_requests)
        self._next_fence = fences(time.time)
        bounds, clock = config.bounds, time.monotonic
        store = open_store(config.store, bounds, clock, next_fence=self._next_fence)
        self._store = cast("SessionStore", WatchedStore(store, self._telemetry.instruments))
        self._quotas = open_quotas(config.store, clock)
        self._leases = LeaseKeeper(lease_s=bounds.lease_s, max_late_bytes=bounds.max_sessions_bytes)
        register = partial(add_GenerationServiceServicer_to_server, self._servicer())
        self._server = Server(config.server_options(), {SERVICE: register})
        self._background: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; the port. Replicas are reached from now on."""
        port = await self._server.start(serving=False)
        self._background = asyncio.get_running_loop().create_task(self._keep_up())
        return port

    async def ready(self) -> None:
        """Wait until a target is ready. Raises what ended the router before."""
        await self._while_kept_up(self._ready.wait())

    async def serve(self) -> None:
        """Serve until a signal, and finish what runs. Raises what ended background tasks."""
        try:
            await self._while_kept_up(self._server.serve_until_stopped(stopping=self._refuse))
        finally:
            await self._server.stop(0)
            await self._end()

    def sample(self, instruments: Instruments) -> None:
        """Tell the instruments how things are at the moment."""
        self._request_telemetry.rounds.publish()
        instruments.put(catalog.REQUESTS_RUNNING, self._admission.num_requests)
        instruments.put(catalog.REQUESTS_CAPACITY, self._config.max_requests)
        states = Counter(
            (replica.role.value, replica.state.value) for replica in self._fleet.infos()
        )
        for role, state in product(ReplicaRole, ReplicaState):
            count = states[role.value, state.value]
            attributes = {"role": role.value, "state": state.value}
            instruments.put(catalog.REPLICAS, count, attributes)

    async def drain(self) -> None:
        """Refuse new requests; those that run go on."""
        self._refuse()
        await self._server.drain()

    async def stop(self, grace_s: float | None = None) -> None:
        """Finish the requests that run, at most for the grace, and end."""
        await self.drain()
        await self._server.stop(grace_s)
        await self._end()

    def _refuse(self) -> None:
        self._admission.is_draining = True

    def _servicer(self) -> GenerationServicer:
        config = self._config
        claims = SessionLeases(self._store, config.keep, next_fence=self._next_fence)
        runner = RequestRunner(
            self._fleet,
            claims,
            self._leases,
            NgramStores(config.ngrams),
            self._admission,
            config,
            self._request_telemetry,
        )
        return GenerationServicer(
            Access(config.key_file),
            self._quotas,
            self._fleet,
            runner,
            self._store,
            self._admission,
            self._request_telemetry,
        )

    async def _while_kept_up(self, work: Coroutine[Any, Any, object]) -> None:
        """Wait for the work; raise what ended background tasks, if they end before."""
        assert self._background is not None
        await before(self._background, work)
        if self._background.done():
            await self._background

    async def _keep_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._targets.run())
            group.create_task(self._drafts.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            self._changed.clear()
            self._fleet.check_weights()
            await self._server.set_serving(self._fleet.has_target)
            if self._fleet.has_target:
                self._ready.set()
            await self._changed.wait()

    async def _end(self) -> None:
        background = self._background
        if background is not None:
            background.cancel()
            await asyncio.wait({background})
        await self._target_probe.aclose()
        await self._leases.aclose()
        await self._store.aclose()
        await self._sources.aclose()
        await self._quotas.aclose()


def fences(now: Callable[[], float]) -> Callable[[], int]:
    """Numbers that only grow, over restarts too: milliseconds, or one more than the last."""
    last = 0

    def next_fence() -> int:
        nonlocal last
        last = max(last + 1, round(now() * 1000))
        return last

    return next_fence
