"""`python -m slipstream_draft`: the draft service as a process."""

import sys
from collections.abc import Sequence

from slipstream.core.request.server_info import ReplicaRole
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.rpc.server import Server
from slipstream.state.factory import announced_in
from slipstream.state.registry import Announcement
from slipstream.telemetry.metric import Telemetry, sampled
from slipstream_draft.app import load_draft
from slipstream_draft.config import DraftConfig
from slipstream_draft.servicer import SERVICE, DraftServicer, register


def main(argv: Sequence[str]) -> int:
    """Serve until a signal stops it; return the process's exit code."""
    return run_service("draft", DraftConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: DraftConfig, telemetry: Telemetry) -> None:
    servicer = load_draft(config, telemetry)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start()
        address = with_port(config.listen.address, port)
        reached = config.replica.advertised_address or address
        async with (
            announced_in(config.store, lambda: _announcement(servicer, reached)),
            sampled(telemetry.instruments, servicer.sample),
        ):
            await server.serve_until_stopped(
                ready=lambda: say_ready(address), broken=servicer.broken
            )
    finally:
        await servicer.close()


def _announcement(servicer: DraftServicer, address: str) -> Announcement:
    about = servicer.about
    return Announcement(
        ReplicaRole.DRAFT,
        address,
        about.identity.incarnation,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
