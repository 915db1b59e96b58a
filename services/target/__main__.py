"""`python -m slipstream.target`: the target as a process."""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from typing import cast

from slipstream.config import load_config, parse_flags, resolved
from slipstream.core.errors import SlipstreamError
from slipstream.models.causal import Numerics
from slipstream.models.cores import Cores, load_on
from slipstream.models.loading import load_target_parts
from slipstream.rpc.server import Server
from slipstream.rpc.thread import EngineThread
from slipstream.rpc.v1 import target_pb2
from slipstream.target.build import build_target
from slipstream.target.config import TargetConfig
from slipstream.target.describe import describe
from slipstream.target.engine import LocalTarget
from slipstream.target.servicer import SERVICE, TargetServicer, register

PROG = "slipstream.target"
_LOG = logging.getLogger(PROG)


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        flags, file = parse_flags(TargetConfig, argv, prog=PROG, doc=str(__doc__))
        config = load_config(TargetConfig, section="target", file=file, flags=flags)
        asyncio.run(_serve(config))
    except SlipstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


async def _serve(config: TargetConfig) -> None:
    _LOG.info("configuration %s", json.dumps(resolved(config)))
    servicer = _load(config)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start(serving=False)
        address = f"{config.address.rpartition(':')[0]}:{port}"
        servicer.advertise(config.advertised_address or address)
        await server.set_serving(True)
        sys.stdout.write(f"ready {address}\n")
        sys.stdout.flush()
        await server.serve_until_stopped()
    finally:
        await servicer.close()


def _load(config: TargetConfig) -> TargetServicer:
    def load() -> tuple[LocalTarget, target_pb2.DescribeTargetResponse]:
        loaded = load_target_parts(config.model, dtype=config.dtype, device=config.device)
        numerics = cast(Numerics, config.numerics)
        built = build_target(loaded, numerics=numerics, max_sessions=config.max_sessions)
        return built.target, describe(loaded, built, max_sessions=config.max_sessions)

    thread = EngineThread("target")
    target, about = load_on(thread.call, load, Cores(config.threads, config.pin_threads))
    _LOG.info("model %s, incarnation %s", about.identity.model_id, about.identity.incarnation)
    return TargetServicer(target, about, config.lease_limits(), thread=thread)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
