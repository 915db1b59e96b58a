"""`python -m slipstream.gateway`: the HTTP front as a process."""

import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from slipstream.client import AsyncClient
from slipstream.core.errors import InvalidRequest
from slipstream.gateway.config import SECTION, HttpConfig
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.telemetry.telemetry import Telemetry

PROBE_S = 2.0
_LOG = logging.getLogger("slipstream.http")
_NEEDED = ("fastapi", "uvicorn")


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    return run_service(SECTION, HttpConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: HttpConfig, _: Telemetry) -> None:
    try:
        from slipstream.gateway.app import Front, make_app  # noqa: PLC0415 - an extra's packages
        from slipstream.gateway.server import HttpServer  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        raise InvalidRequest(
            f"serving HTTP needs {missing.name}: pip install 'slipstream[gateway]'"
        ) from None
    # What is not given stays unsaid: a token in the clear is allowed only where it is meant.
    tls = config.to_router() or (False if config.plaintext_tokens else None)
    async with AsyncExitStack() as stack:
        client = AsyncClient(config.router, tls=tls, timeout_s=config.timeout_s)
        probe = AsyncClient(config.router, tls=tls, timeout_s=PROBE_S, retries=False)
        for each in (client, probe):
            await stack.enter_async_context(each)
        server = HttpServer(make_app(Front(config, client, probe)), config)
        address = with_port(config.listen_address, await server.start())
        stack.push_async_callback(server.stop, 0)
        _LOG.info(
            "%s://%s/v1 asks %s",
            "http" if config.tls() is None else "https",
            address,
            config.router,
        )
        say_ready(address)
        await server.serve_until_stopped()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
