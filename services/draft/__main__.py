"""`python -m slipstream.draft`: the draft service as a process."""

import sys
from collections.abc import Sequence

from slipstream.draft.app import load_draft
from slipstream.draft.config import DraftConfig
from slipstream.draft.servicer import SERVICE, register
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.rpc.server import Server


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    return run_service("draft", DraftConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: DraftConfig) -> None:
    servicer = load_draft(config)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start()
        address = with_port(config.address, port)
        await server.serve_until_stopped(ready=lambda: say_ready(address))
    finally:
        await servicer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
