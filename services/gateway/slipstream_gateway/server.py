"""The HTTP front as a service: the application on a port, HTTP or HTTPS, over routers.

uvicorn's own protocol has a time limit only between two requests; here every wait for a client has.
"""

import asyncio
import logging
import math
import signal
import socket
from contextlib import AsyncExitStack
from enum import Enum
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.client import AsyncClient
from slipstream.client.connection import connection
from slipstream.client.remote import RemoteBackend
from slipstream.core.errors import Unavailable
from slipstream.core.inline import before
from slipstream.files import ReloadedFiles
from slipstream.rpc.process import with_port
from slipstream.rpc.security import ServerTls, read_pair
from slipstream.telemetry.catalog import REQUESTS_RUNNING
from slipstream.telemetry.metric import Instruments, Telemetry, sampled
from slipstream.telemetry.sdk_spans import SdkTelemetry
from slipstream_gateway.app import Routes, make_app
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.errors import HttpError
from slipstream_gateway.handlers import Front
from slipstream_gateway.http_io import as_json

PROBE_S = 2.0
"""Longest time for a router to answer a health check."""
RENEW_S = 1
"""Shortest time between two looks at the certificate."""
_LOG = logging.getLogger("slipstream.http")


class Phase(Enum):
    """Phase of a connection: what it waits for."""

    HEAD = "the head of a request"
    ANSWER = "a request's body and its answer, to the last byte,"
    REST = "the rest of a body that was answered already"
    IDLE = "another request"


class BoundedConnection(H11Protocol):
    """A connection that is cut off once a wait for its client takes too long.

    To the application that is a client that has left: what runs for it ends.
    """

    def __init__(self, *, limits: HttpConfig, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._waits_for: tuple[Phase, object] | None = None
        self._phase_limit: asyncio.TimerHandle | None = None
        self._send_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`. One connection too many gets an error, and is closed."""
        if len(self.connections) >= self._limits.max_connections:
            transport.write(_too_many(self._limits.max_connections))
            transport.close()
            return
        # Writing is paused from the first byte that the client does not take.
        transport.set_write_buffer_limits(high=1)
        super().connection_made(transport)
        self._bound_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        for limit in filter(None, (self._phase_limit, self._send_limit)):
            limit.cancel()
        if self.transport is not None:
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._bound_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._bound_phase()

    def send_400_response(self, msg: str) -> None:
        """See `H11Protocol`. A request that is served is left alone from here on; one whose answer
        has begun can have no other, nor can one to HEAD have a body: then it is cut off."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is not None and cycle.response_started:
            self.transport.abort()
            return
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._bound_send()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_limit is not None:
            self._send_limit.cancel()

    def _bound_phase(self) -> None:
        """Start the time limit of a phase, once for each request."""
        waits_for = self._phase(), self.cycle
        if waits_for == self._waits_for:
            return
        if self._phase_limit is not None:
            self._phase_limit.cancel()
        phase, _ = self._waits_for = waits_for
        limits = self._limits
        limit_s = {
            Phase.HEAD: limits.header_timeout_s,
            Phase.ANSWER: limits.body_timeout_s + limits.timeout_s + limits.send_timeout_s,
            Phase.REST: limits.body_timeout_s,
            Phase.IDLE: limits.keep_alive_s,
        }[phase]
        self._phase_limit = self.loop.call_later(limit_s, self._cut_off, phase, limit_s)

    def _phase(self) -> Phase:
        if self.conn.their_state is h11.IDLE:
            is_later = self.cycle is not None and not self.conn.trailing_data[0]
            return Phase.IDLE if is_later else Phase.HEAD
        is_answered = self.cycle is not None and self.cycle.response_complete
        is_sending = self.conn.their_state is h11.SEND_BODY
        return Phase.REST if is_answered and is_sending else Phase.ANSWER

    def _bound_send(self) -> None:
        limit_s, unsent = self._limits.send_timeout_s, self.transport.get_write_buffer_size()
        self._send_limit = self.loop.call_later(limit_s, self._check_sent, unsent)

    def _check_sent(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._bound_send()
        else:
            limit_s = self._limits.send_timeout_s
            _LOG.info("a connection is cut off: nothing was read for %g s", limit_s)
            self.transport.abort()

    def _cut_off(self, phase: Phase, limit_s: float) -> None:
        if phase is not Phase.IDLE:
            _LOG.info("a connection is cut off: %s took longer than %g s", phase.value, limit_s)
        self.transport.abort()


def _too_many(limit: int) -> bytes:
    message = f"the server has {limit} connections, which is the limit"
    body = as_json(HttpError(message, code="too_many_connections", status=503).body())
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class Gateway:
    """`start` it, then `serve_until_stopped`; `stop` in any case. For one event loop."""

    def __init__(self, config: HttpConfig, telemetry: Telemetry | None = None) -> None:
        """Raises `InvalidRequest` for what can't be used."""
        self._config = config
        telemetry = telemetry or Telemetry()
        self._instruments = telemetry.instruments
        # Tokens in the clear are allowed only where that is meant.
        to_router = config.to_router() or (False if config.plaintext_tokens else None)
        to = connection(config.router, token=None, tls=to_router, retries=True)
        remote = RemoteBackend(to, config.timeout_s, to.channel(is_blocking=False))
        client = AsyncClient.of(remote, telemetry=SdkTelemetry(telemetry.tracer))
        probe = AsyncClient(config.router, tls=to_router, timeout_s=PROBE_S, retries=False)
        self._clients = (client, probe)
        tls = config.tls()
        self._pair = None if tls is None else ReloadedFiles((tls.cert, tls.key), lambda: _pair(tls))
        app = make_app(Routes(config, client, probe), has_page=config.page)
        self._server = _uvicorn(Front(app, config.allowed_origins), config, self._renew)
        self._looping: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; return the address. Raises `Unavailable` when it can't be had."""
        config, server = self._server.config, self._server
        config.load()
        server.lifespan = config.lifespan_class(config)
        listener = self._listen()
        address = with_port(self._config.listen_address, listener.getsockname()[1])
        parts = {"config": config, "server_state": server.server_state, "app_state": {}}
        accepting = await asyncio.get_running_loop().create_server(
            lambda: BoundedConnection(limits=self._config, **parts),
            sock=listener,
            ssl=config.ssl,
            backlog=config.backlog,
            ssl_handshake_timeout=None if config.ssl is None else self._config.header_timeout_s,
        )
        server.servers, server.started = [accepting], True
        self._looping = asyncio.create_task(server.main_loop())
        scheme = "http" if config.ssl is None else "https"
        _LOG.info("%s://%s/v1 is a client of %s", scheme, address, self._config.router)
        return address

    async def serve_until_stopped(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs. A second signal ends the grace."""

        def sample(instruments: Instruments) -> None:
            instruments.put(REQUESTS_RUNNING, len(self._server.server_state.tasks))

        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        async with sampled(self._instruments, sample):
            await stopped.wait()
            _LOG.info("stopping: requests in flight have %g s", self._config.grace_s)
            stopped.clear()
            ending = asyncio.create_task(self._stop_serving(self._config.grace_s))
            await before(ending, stopped.wait())
            self._server.force_exit = True
            await ending

    async def stop(self, grace_s: float) -> None:
        """Finish what runs, at most for the grace, and leave the router. Again is fine."""
        async with AsyncExitStack() as last:
            for client in self._clients:
                last.push_async_callback(client.aclose)
            await self._stop_serving(grace_s)

    async def _stop_serving(self, grace_s: float) -> None:
        """Take no more connections and finish requests, at most for the grace; then end them."""
        server, looping = self._server, self._looping
        if looping is None:
            return
        self._looping = None
        server.should_exit = True
        await asyncio.wait({looping})
        server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        await server.shutdown()
        tasks = set(server.server_state.tasks)
        for task in tasks:  # requests that ran out of time free what they hold
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _renew(self) -> None:
        """Show connections from now on the certificate that is there now."""
        context = self._server.config.ssl
        if context is not None and self._pair is not None and self._pair.refresh():
            context.load_cert_chain(*self._pair.value)

    def _listen(self) -> socket.socket:
        host, port = self._config.host_and_port()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            what = f"{self._config.listen_address} can't be listened on ({error.strerror})"
            raise Unavailable(f"the address {what}") from None


def _uvicorn(app: Any, config: HttpConfig, renew: Any) -> uvicorn.Server:
    tls = config.tls()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(config.keep_alive_s),
            callback_notify=renew,
            timeout_notify=RENEW_S,
            ssl_certfile=None if tls is None else str(tls.cert),
            ssl_keyfile=None if tls is None else str(tls.key),
        )
    )


def _pair(tls: ServerTls) -> tuple[Path, Path]:
    read_pair(tls.cert, tls.key)
    return tls.cert, tls.key
