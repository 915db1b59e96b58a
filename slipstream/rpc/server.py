"""Serves any of the three services: health, reflection, limits, and an end that drops no call."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from slipstream.core.errors import InternalError, InvalidRequest, Unavailable, check, host_and_port
from slipstream.core.inline import before, beside
from slipstream.options import check_bounds, option
from slipstream.rpc.channel import keepalive
from slipstream.rpc.interceptors import CallLimits, Calls
from slipstream.rpc.security import Callers, ServerTls

HEALTH = "grpc.health.v1.Health"
LIVE = "live"
"""Name of the process in health checks: SERVING until stopped, whatever its services report."""
LAST_WORDS_S = 0.25
CLEAN_UP_S = 2.0
"""Time for cut-off calls to release what they hold, and for what is closed after the server."""
MAX_METADATA_BYTES = 16 << 10
MAX_STREAMS = 256
HANDSHAKE_S = 10
MIN_AGE_S = 1.0
"""Least maximum age or idle time of connections: with less, clients mostly dial."""
MAX_AGE_S = (2**31 - 1) // 1000
"""gRPC counts milliseconds in 32 bits."""
_LOG = logging.getLogger("slipstream.rpc")
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Register = Callable[[grpc.aio.Server], None]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Address where a service listens, and the limits there."""

    address: str = option("127.0.0.1:0", "Address to listen on.")
    max_message_bytes: int = option(4 << 20, "Largest message accepted, in bytes.", least=1024)
    grace_s: float = option(30.0, "Seconds that running requests get to finish at a stop.", least=0)
    health_address: str | None = option(None, "A plaintext port that serves health alone.")

    def __post_init__(self) -> None:
        """Raises `InvalidRequest`."""
        check_bounds(self)
        for name in ("address", "health_address"):
            if not ((address := getattr(self, name)) or "unix:").startswith("unix:"):
                host_and_port(name, address)


@dataclass(frozen=True, slots=True)
class ServerOptions(ListenOptions):
    """Options of a server: what it serves, for whom, and on how many connections."""

    max_streams: int = option(
        MAX_STREAMS, "Calls that one connection may have open at once.", least=1
    )
    """More of them wait on the caller's side."""
    max_connections: int = option(
        1000, "Connections at once; further ones are closed. 0 for no limit."
    )
    max_connection_idle_s: float = option(
        300.0, "Seconds without a call after which a connection is closed; 0 for never."
    )
    max_connection_age_s: float = option(
        300.0,
        "Seconds after which callers must dial anew, so that they find new routers; 0 for never.",
    )
    max_connection_age_grace_s: float = option(
        3600.0,
        "Longest time for requests on a connection of that age; more than any request takes.",
        least=0,
        most=MAX_AGE_S,
    )
    limits: CallLimits = field(default_factory=CallLimits)
    tls: ServerTls | None = None
    callers: Callers = field(default_factory=Callers)

    def __post_init__(self) -> None:
        ListenOptions.__post_init__(self)
        most = self.max_connections
        check(0 <= most < 2**31, "max_connections", most, f"0 for no limit, or below {2**31}")
        for name in ("max_connection_idle_s", "max_connection_age_s"):
            period_s = getattr(self, name)
            is_right = period_s == 0 or MIN_AGE_S <= period_s <= MAX_AGE_S
            check(is_right, name, period_s, f"0 for never, or {MIN_AGE_S:g} to {MAX_AGE_S:.0f}")
        age_s, grace_s = self.max_connection_age_s, self.max_connection_age_grace_s
        if age_s and grace_s < self.grace_s:
            raise InvalidRequest(
                f"max_connection_age_grace_s is {grace_s}, less than the {self.grace_s} of grace_s:"
                " an aging connection must give calls the time that a server which stops gives them"
            )


async def _never() -> None:
    """Wait for ever: the service never breaks."""


class Server:
    """One process's server. `start` it, then `serve_until_stopped` or `stop`."""

    def __init__(self, options: ServerOptions, services: Mapping[str, Register]) -> None:
        """`services` by full name, such as slipstream.rpc.v1.TargetService."""
        self._options = options
        self._names = ("", *services)
        self._health = HealthServicer()
        self._calls = Calls(options.callers, options.limits)
        self._server = grpc.aio.server(interceptors=[self._calls], options=_arguments(options))
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*services, HEALTH, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        self._health_server: grpc.aio.Server | None = None
        if options.health_address is not None:
            self._health_server = grpc.aio.server(options=_limits(options))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._health_server)

    async def start(self, *, serving: bool = True) -> int:
        """Listen; the port. Raises `Unavailable` if it is taken. Health is as `serving` says."""
        try:
            port = self._listen()
        except BaseException:
            for server in filter(None, (self._server, self._health_server)):
                await server.stop(None)
            raise
        await self.set_serving(serving)
        await self._health.set(LIVE, _SERVING)
        await self._server.start()
        if self._health_server is not None:
            await self._health_server.start()
        return port

    async def set_serving(self, serving: bool) -> None:
        """Set the health status, which watchers get at once."""
        for name in self._names:
            await self._health.set(name, _SERVING if serving else _NOT_SERVING)

    async def drain(self) -> None:
        """Say NOT_SERVING, for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no more calls and finish those in flight, at most for the grace; then end them."""
        grace = self._options.grace_s if grace_s is None else grace_s
        await self.drain()
        self._calls.close()
        await self._calls.none(grace)
        # What is left are last words on their way, and those who watch health, who never end.
        await self._server.stop(min(grace, LAST_WORDS_S))
        await self._calls.ended(CLEAN_UP_S)
        if self._health_server is not None:
            await self._health_server.stop(0)

    async def serve_until_stopped(
        self,
        *,
        ready: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
        broken: Callable[[], Awaitable[str | None]] = _never,
    ) -> None:
        """Serve until SIGTERM or SIGINT, then drain and stop. A second signal ends the grace.

        `ready` is called once signals mean that, `stopping` at the first of them. What is served is
        of no more use once `broken` returns a reason: then it stops, too, and raises
        `InternalError`.
        """
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        reasons: list[str] = []

        async def watch() -> None:
            if (reason := await broken()) is not None:
                _LOG.critical("%s", reason)
                reasons.append(reason)
                stopped.set()

        async with beside(watch()):
            ready()
            await stopped.wait()
        stopping()
        _LOG.info("stopping: calls in flight have %g s", self._options.grace_s)
        stopped.clear()
        ending = loop.create_task(self.stop())
        await before(ending, stopped.wait())
        self._calls.give_up()
        await ending
        if reasons:
            raise InternalError(reasons[0])

    def _listen(self) -> int:
        options = self._options
        try:
            if options.tls is None:
                port = self._server.add_insecure_port(options.address)
            else:
                credentials = options.tls.credentials()
                port = self._server.add_secure_port(options.address, credentials)
            if self._health_server is not None and options.health_address is not None:
                self._health_server.add_insecure_port(options.health_address)
        except RuntimeError:
            where = " or ".join(filter(None, (options.address, options.health_address)))
            raise Unavailable(f"the address {where} can't be listened on") from None
        return int(port)


def _limits(options: ServerOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_concurrent_streams", options.max_streams),
        # Two, or what lies between them is refused by chance.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
        ("grpc.so_reuseport", 0),
    ]


def _arguments(options: ServerOptions) -> list[tuple[str, int]]:
    bounds = {
        "grpc.max_allowed_incoming_connections": options.max_connections,
        "grpc.max_connection_idle_ms": round(options.max_connection_idle_s * 1000),
        # gRPC makes each age up to a tenth longer or shorter, so that not all end at once.
        "grpc.max_connection_age_ms": round(options.max_connection_age_s * 1000),
    }
    return [
        *keepalive(),
        *_limits(options),
        *((name, bound) for name, bound in bounds.items() if bound),
        ("grpc.max_connection_age_grace_ms", round(options.max_connection_age_grace_s * 1000)),
        # Callers ping every 10 s, on idle connections and through long prefills too.
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
        ("grpc.max_send_message_length", -1),
    ]
