"""The HTTP front as a service: its clients of the router, its routes, its port."""

import logging
from contextlib import AsyncExitStack

from slipstream.client import AsyncClient
from slipstream.client.connection import connection
from slipstream.client.remote import Remote
from slipstream.gateway.app import Front, make_app
from slipstream.gateway.config import HttpConfig
from slipstream.gateway.server import HttpServer
from slipstream.rpc.process import with_port
from slipstream.telemetry.sdk_spans import SdkTelemetry
from slipstream.telemetry.telemetry import Telemetry

PROBE_S = 2.0
"""Longest time for a router to answer who asks for health."""
_LOG = logging.getLogger("slipstream.http")


class Gateway:
    """`start` it, then `serve_until_stopped`; `stop` in any case. For one event loop."""

    def __init__(self, config: HttpConfig, telemetry: Telemetry | None = None) -> None:
        """Raises `InvalidRequest` for what can't be used."""
        self._config = config
        # Tokens in the clear are allowed only where that is meant.
        tls = config.to_router() or (False if config.plaintext_tokens else None)
        to = connection(config.router, token=None, tls=tls, retries=True)
        remote = Remote(to, config.timeout_s, to.channel(is_blocking=False))
        client = AsyncClient.of(remote, telemetry=SdkTelemetry.of(telemetry or Telemetry()))
        probe = AsyncClient(config.router, tls=tls, timeout_s=PROBE_S, retries=False)
        self._clients = (client, probe)
        self._server = HttpServer(make_app(Front(config, client, probe)), config)

    async def start(self) -> str:
        """Listen; the address. Raises `Unavailable` when it can't be had."""
        config = self._config
        address = with_port(config.listen_address, await self._server.start())
        scheme = "http" if config.tls() is None else "https"
        _LOG.info("%s://%s/v1 asks %s", scheme, address, config.router)
        return address

    async def serve_until_stopped(self) -> None:
        """See `HttpServer.serve_until_stopped`."""
        await self._server.serve_until_stopped()

    async def stop(self, grace_s: float | None = None) -> None:
        """Finish what runs, at most for the grace, and leave the router. Again is fine."""
        async with AsyncExitStack() as last:
            for client in self._clients:
                last.push_async_callback(client.aclose)
            await self._server.stop(grace_s)
