"""`python -m slipstream.router`: the router as a process."""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence

from slipstream.config import load_config, parse_flags, resolved
from slipstream.core.errors import SlipstreamError
from slipstream.router.app import Router
from slipstream.router.config import RouterConfig

PROG = "slipstream.router"
_LOG = logging.getLogger(PROG)


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        flags, file = parse_flags(RouterConfig, argv, prog=PROG, doc=str(__doc__))
        config = load_config(RouterConfig, section="router", file=file, flags=flags)
        asyncio.run(_serve(config))
    except SlipstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


async def _serve(config: RouterConfig) -> None:
    _LOG.info("configuration %s", json.dumps(resolved(config)))
    router = Router(config)
    port = await router.start()
    host = config.address.rpartition(":")[0]
    announcing = asyncio.get_running_loop().create_task(_announce(router, f"{host}:{port}"))
    try:
        await router.serve()
    finally:
        announcing.cancel()
        await asyncio.wait({announcing})


async def _announce(router: Router, address: str) -> None:
    await router.ready()
    sys.stdout.write(f"ready {address}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
