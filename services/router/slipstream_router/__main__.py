"""`python -m slipstream_router`: the router as a process."""

import sys
from collections.abc import Sequence

from slipstream.core.inline import beside
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.telemetry.metric import Telemetry, sampled
from slipstream_router.app import Router
from slipstream_router.config import RouterConfig


def main(argv: Sequence[str]) -> int:
    """Serve until a signal stops it; return the process's exit code."""
    return run_service("router", RouterConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: RouterConfig, telemetry: Telemetry) -> None:
    router = Router(config, telemetry)
    address = with_port(config.listen.address, await router.start())
    announcing, sampling = _announce(router, address), sampled(telemetry.instruments, router.sample)
    async with beside(announcing), sampling:
        await router.serve()


async def _announce(router: Router, address: str) -> None:
    await router.ready()
    say_ready(address)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
