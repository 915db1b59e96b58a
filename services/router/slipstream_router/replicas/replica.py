"""One replica: reached, described, followed by its health and its answers, lost and found.

It is lost when its connection breaks, or when heartbeats get no answer for too long: a stopped
process keeps its connections.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

import grpc.aio
from grpc_health.v1 import health_pb2

from slipstream.config import are_local
from slipstream.core.errors import HandshakeError, SlipstreamError, Unavailable, check, printable
from slipstream.core.inline import either
from slipstream.core.policy.profile import Ways
from slipstream.core.request.server_info import ReplicaInfo, ReplicaState
from slipstream.options import check_bounds, option
from slipstream.rpc.channel import Dialer
from slipstream.rpc.exchange import Peer, parsed
from slipstream.rpc.status import error_from, is_named, proxy_hint
from slipstream.rpc.v1 import common_pb2
from slipstream_router.replicas.probes import D, Probe

CONNECT_LIMIT_S = 5.0
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0
_WATCH = "/grpc.health.v1.Health/Watch"
_LOG = logging.getLogger("slipstream.router")


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called after a change of a replica's state, and when its address is a new process or gone."""

    on_change: Callable[[], None] = lambda: None
    forget: Callable[[str], None] = lambda address: None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Interval of heartbeats, and the silence after which a replica is lost."""

    heartbeat_s: float = option(1.0, "Seconds between two heartbeats of a replica.", above=0)
    replica_timeout_s: float = option(
        5.0, "Seconds without an answer after which a replica is lost."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        limit_s, limit = self.replica_timeout_s, f"at least the heartbeat's {self.heartbeat_s} s"
        check(limit_s >= self.heartbeat_s, "replica_timeout_s", limit_s, limit)

    async def follow(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `ask` for ever. Raises `Unavailable` without an answer in time, or as `ask` does."""
        while True:
            await self._answered(asyncio.get_running_loop().create_task(ask()))
            await asyncio.sleep(self.heartbeat_s)

    async def _answered(self, asking: asyncio.Task[None]) -> None:
        """Beats are counted, not time: a router that was itself stopped for long has seen one."""
        try:
            for _ in range(round(self.replica_timeout_s / self.heartbeat_s)):
                await asyncio.wait({asking}, timeout=self.heartbeat_s)
                if asking.done():
                    return await asking
        finally:
            asking.cancel()
        raise Unavailable(f"it has not answered for {self.replica_timeout_s:g} s")


class Replica(Generic[D]):
    """A replica as the router sees it."""

    def __init__(
        self, address: str, dial: Dialer, probe: Probe[D], *, heartbeat: Heartbeat, hooks: Hooks
    ) -> None:
        self.address = address
        self.channel = dial(address)
        """Channel to the replica; a new one once certificates have changed and it was lost."""
        self.state = ReplicaState.CONNECTING
        self.reason = "not reached yet"
        self.described: D | None = None
        """Last description received, kept when the replica is lost."""
        self.epoch: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Time from its description until it is lost, for the reason that is the result; then
        another one begins. A replica that drains is not lost. Shield it, so that it is not ended
        with a wait for its end."""
        self.epoch.set_result(self.reason)
        self.load: common_pb2.Load | None = None
        """Last load received; None before the first."""
        self.relieved: common_pb2.Load | None = None
        """The load that it had reported when a request last left it for a less crowded one."""
        self.ways = Ways()
        """Ways between services, as requests on it measured them."""
        self.num_requests = 0
        self.last_began = 0.0
        """Time at which this router's last request began here, by the monotonic clock."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._dial, self._stamp = dial, dial.stamp()
        self._outdated: list[grpc.aio.Channel] = []
        self._probe = probe
        self._heartbeat = heartbeat
        self._hooks = hooks
        self._num_others = 0
        """Requests of other routers that ran on it when it was asked last."""
        self._is_retired = self._is_reported = False
        """True if the log has the reason why the replica is unreachable."""

    @property
    def name(self) -> str:
        """Name in errors: target 10.0.0.7:50052."""
        return f"{self._probe.role.value} {self.address}"

    @property
    def peer(self) -> Peer:
        """Return how the replica is reached; its users are counted."""
        return Peer(self.name, self.channel, self.used)

    @property
    def num_busy(self) -> int:
        """Requests that run on it, those of other routers included as far as they are known."""
        return self.num_requests + self._num_others

    @property
    def info(self) -> ReplicaInfo:
        return ReplicaInfo(
            role=self._probe.role,
            address=self.address,
            state=self.state,
            reason=self.reason,
            num_requests=self.num_requests,
            **({} if self.described is None else self.described.reported),
        )

    @contextmanager
    def used(self) -> Iterator[None]:
        """Count a request for as long as it runs here."""
        self.num_requests += 1
        self.last_began = time.monotonic()
        self.idle.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if not self.num_requests:
                self.idle.set()

    def retire(self) -> None:
        """Accept no new requests. Running ones still learn when the replica is lost."""
        self._is_retired = True
        self._set(self.state, self.reason)

    async def follow(self) -> None:
        """Connect and follow its health, until cancelled, or retired and lost."""
        wait_s = FIRST_WAIT_S
        while not self._is_retired:
            began = time.monotonic()
            reason = await self._attend()
            lasted = time.monotonic() - began > LONGEST_WAIT_S
            if lasted and self.state is not ReplicaState.CONNECTING:
                wait_s = FIRST_WAIT_S
            self._set(ReplicaState.CONNECTING, reason)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def close(self) -> None:
        for channel in (self.channel, *self._outdated):
            await channel.close()

    async def _renew(self) -> None:
        """Dial again where certificates have changed. Old calls end with the epoch."""
        if (stamp := self._dial.stamp()) != self._stamp:
            self._outdated.append(self.channel)
            self.channel, self._stamp = self._dial(self.address), stamp
        while self._outdated and not self.num_requests:
            await self._outdated.pop().close()

    async def _attend(self) -> str:
        reason = ""
        try:
            await self._renew()
            reason = await self._watch()
        except TimeoutError:
            hint = "" if are_local(self.address) else proxy_hint()
            reason = f"it did not answer within {CONNECT_LIMIT_S:g} s{hint}"
        except grpc.aio.AioRpcError as error:
            reason = str(error_from(error))
        except SlipstreamError as error:
            reason = str(error)
        except Exception as error:  # an error of one replica ends no other
            reason = f"it is not understood: {type(error).__name__}"
            if reason != self.reason:
                _LOG.exception("%s is not understood", self.name)
        finally:
            if not self.epoch.done():
                self.epoch.set_result(reason or "the router has let go of it")
            self.load, self._num_others = None, 0
        return reason

    async def _watch(self) -> str:
        request = health_pb2.HealthCheckRequest(service=self._probe.service)
        watch: Any = self.channel.unary_stream(_WATCH)(request.SerializeToString())
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                health = await _read(watch)
            await either(self._follow(watch, health), self._heartbeat.follow(self._ask_load))
        finally:
            watch.cancel()
        return "it has ended the connection"

    async def _follow(self, watch: Any, health: health_pb2.HealthCheckResponse | None) -> None:
        """Act on changes of its health; frequent changes are read more slowly."""
        is_described, wait_s = False, FIRST_WAIT_S
        while health is not None:
            if health.status != health_pb2.HealthCheckResponse.SERVING:
                state = ReplicaState.DRAINING if is_described else ReplicaState.CONNECTING
                self._set(state, "it reports NOT_SERVING")
            elif is_described or await self._describe():
                is_described = True
                self._set(ReplicaState.READY, "")
            began = time.monotonic()
            health = await _read(watch)
            if time.monotonic() - began < wait_s:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            else:
                wait_s = FIRST_WAIT_S

    async def _describe(self) -> bool:
        try:
            self.described = await self._probe.describe(self.channel)
        except HandshakeError as error:
            self._set(ReplicaState.UNFIT, str(error))
            return False
        except SlipstreamError as error:
            raise Unavailable(f"it did not say what it is: {error}") from None
        await self._ask_load()
        self.epoch = asyncio.get_running_loop().create_future()
        self._hooks.forget(self.address)
        return True

    async def _ask_load(self) -> None:
        """Request its load; any reply counts, errors included, except transport errors."""
        num_before = self.num_requests
        try:
            load = await self._probe.load(self.channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not is_named(error):
                raise
            return
        # A request may have come or gone while it counted; none is to count for two.
        self._num_others = max(load.num_sessions - max(num_before, self.num_requests), 0)
        self.load = load

    def _set(self, state: ReplicaState, reason: str) -> None:
        reason = printable(reason)
        if self._is_retired:
            state, reason = ReplicaState.DRAINING, "removed from the list"
        if (state, reason) == (self.state, self.reason):
            return
        if state is not self.state or not self._is_reported:
            _LOG.info("%s is %s%s", self.name, state.value, f": {reason}" if reason else "")
        self._is_reported = state is not ReplicaState.READY
        self.state, self.reason = state, reason
        self._hooks.on_change()


async def _read(watch: Any) -> health_pb2.HealthCheckResponse | None:
    """Return the next health response, None at the end; `InternalError` for other bytes."""
    answer, kind = await watch.read(), health_pb2.HealthCheckResponse
    return None if answer is grpc.aio.EOF else parsed(kind, answer, "it")
