"""The application on a port: HTTP or HTTPS, and an end that drops nobody. Knows no routes."""

import asyncio
import logging
import math
import signal
import socket
from pathlib import Path
from typing import Any

import uvicorn

from slipstream.core.errors import Unavailable
from slipstream.gateway.config import HttpConfig
from slipstream.gateway.connection import BoundedConnection
from slipstream.rpc.certificates import Reloaded, read_pair
from slipstream.rpc.security import ServerTls

RENEW_S = 1
"""How often, at most, the certificate is looked at."""
_LOG = logging.getLogger("slipstream.http")


class HttpServer:
    """`start` it, then `serve_until_stopped`, or `stop`."""

    def __init__(self, app: Any, config: HttpConfig) -> None:
        self._config = config
        tls = config.tls()
        self._pair = None if tls is None else Reloaded((tls.cert, tls.key), lambda: _pair(tls))
        self._server = uvicorn.Server(
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
                callback_notify=self._renew,
                timeout_notify=RENEW_S,
                ssl_certfile=None if tls is None else str(tls.cert),
                ssl_keyfile=None if tls is None else str(tls.key),
            )
        )
        self._looping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; the port. Raises `Unavailable` when the address can't be had."""
        config, server = self._server.config, self._server
        config.load()
        server.lifespan = config.lifespan_class(config)
        listener = self._listen()
        port: int = listener.getsockname()[1]
        accepting = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=listener,
            ssl=config.ssl,
            backlog=config.backlog,
            ssl_handshake_timeout=None if config.ssl is None else self._config.header_timeout_s,
        )
        server.servers, server.started = [accepting], True
        self._looping = asyncio.create_task(server.main_loop())
        return port

    async def serve_until_stopped(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs. A second signal ends the grace."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        await stopped.wait()
        _LOG.info("stopping: requests in flight have %g s", self._config.grace_s)
        stopped.clear()
        ending = loop.create_task(self.stop())
        hurry = loop.create_task(stopped.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        self._server.force_exit = True
        await ending

    async def stop(self, grace_s: float | None = None) -> None:
        """Take no more connections and finish requests, at most for the grace; then end them."""
        server, looping = self._server, self._looping
        if looping is None:
            return
        self._looping = None
        server.should_exit = True
        await asyncio.wait({looping})
        grace_s = self._config.grace_s if grace_s is None else grace_s
        server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        await server.shutdown()
        await self._last()

    def _connection(self) -> BoundedConnection:
        config, state = self._server.config, self._server.server_state
        return BoundedConnection(
            limits=self._config, config=config, server_state=state, app_state={}
        )

    async def _renew(self) -> None:
        """Connections from now on are shown the certificate that is there now."""
        context = self._server.config.ssl
        if context is not None and self._pair is not None and self._pair.refresh():
            context.load_cert_chain(*self._pair.value)

    async def _last(self) -> None:
        """Requests that run out of time let go of what they hold."""
        tasks = set(self._server.server_state.tasks)
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _listen(self) -> socket.socket:
        host, port = self._config.place()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family)
        except OSError:
            where = self._config.listen_address
            raise Unavailable(f"the address {where} can't be listened on") from None


def _pair(tls: ServerTls) -> tuple[Path, Path]:
    """The files, which belong together now. Raises `InvalidRequest`."""
    read_pair(tls.cert, tls.key)
    return tls.cert, tls.key
