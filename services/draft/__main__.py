"""`python -m slipstream.draft`: the draft service as a process."""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence

from slipstream.config import load_config, parse_flags, resolved
from slipstream.core.errors import SlipstreamError
from slipstream.draft.app import load_draft
from slipstream.draft.config import DraftConfig
from slipstream.draft.servicer import SERVICE, register
from slipstream.rpc.server import Server

PROG = "slipstream.draft"
_LOG = logging.getLogger(PROG)


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        flags, file = parse_flags(DraftConfig, argv, prog=PROG, doc=str(__doc__))
        config = load_config(DraftConfig, section="draft", file=file, flags=flags)
        asyncio.run(_serve(config))
    except SlipstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


async def _serve(config: DraftConfig) -> None:
    _LOG.info("configuration %s", json.dumps(resolved(config)))
    servicer = load_draft(config)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start()
        host = config.address.rpartition(":")[0]
        sys.stdout.write(f"ready {host}:{port}\n")
        sys.stdout.flush()
        await server.serve_until_stopped()
    finally:
        await servicer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
