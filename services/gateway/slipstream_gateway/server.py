"""The HTTP front as a service: the application on a port, HTTP or HTTPS, over routers."""

import asyncio
import logging
import math
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvicorn

from slipstream.client import AsyncClient
from slipstream.client.connection import connection
from slipstream.client.remote import RemoteBackend
from slipstream.core.errors import Unavailable
from slipstream.rpc.process import with_port
from slipstream.rpc.security import ReloadedFiles, ServerTls, read_pair
from slipstream.telemetry.catalog import REQUESTS_RUNNING
from slipstream.telemetry.metric import Instruments, Telemetry, sampled
from slipstream.telemetry.sdk_spans import SdkTelemetry
from slipstream_gateway.app import Routes, make_app
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.connection import BoundedConnection
from slipstream_gateway.handlers import Front

PROBE_S = 2.0
"""Longest time for a router to answer a health check."""
RENEW_S = 1
"""Shortest time between two looks at the certificate."""
_LOG = logging.getLogger("slipstream.http")


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
        accepting = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=config.ssl,
            backlog=config.backlog,
            ssl_handshake_timeout=None if config.ssl is None else self._config.header_timeout_s,
        )
        server.servers, server.started = [accepting], True
        self._looping = asyncio.create_task(server.main_loop())
        scheme = "http" if config.ssl is None else "https"
        _LOG.info("%s://%s/v1 asks %s", scheme, address, self._config.router)
        return address

    async def serve_until_stopped(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs. A second signal ends the grace."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        async with sampled(self._instruments, self._sample):
            await stopped.wait()
            await self._end(stopped)

    async def _end(self, stopped: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        _LOG.info("stopping: requests in flight have %g s", self._config.grace_s)
        stopped.clear()
        ending = loop.create_task(self._stop_serving(self._config.grace_s))
        hurry = loop.create_task(stopped.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        self._server.force_exit = True
        await ending

    def _sample(self, instruments: Instruments) -> None:
        instruments.put(REQUESTS_RUNNING, len(self._server.server_state.tasks))

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

    def _connection(self) -> BoundedConnection:
        config, state = self._server.config, self._server.server_state
        return BoundedConnection(
            limits=self._config, config=config, server_state=state, app_state={}
        )

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
        except OSError:
            where = self._config.listen_address
            raise Unavailable(f"the address {where} can't be listened on") from None


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
