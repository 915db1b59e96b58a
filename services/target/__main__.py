"""`python -m slipstream.target`: the target as a process."""

import logging
import sys
from collections.abc import Sequence
from typing import cast

from slipstream.engine.thread import EngineThread
from slipstream.models.causal import Numerics
from slipstream.models.cores import Cores, load_on
from slipstream.models.loading import load_target_parts
from slipstream.rpc.process import run_service, say_ready, with_port
from slipstream.rpc.server import Server
from slipstream.rpc.v1 import target_pb2
from slipstream.target.batcher import BatchLimits
from slipstream.target.build import BuiltTarget, build_target
from slipstream.target.config import TargetConfig
from slipstream.target.describe import describe
from slipstream.target.servicer import SERVICE, TargetServicer, register

_LOG = logging.getLogger("slipstream.target")


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop; the process's exit code."""
    return run_service("target", TargetConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: TargetConfig) -> None:
    servicer = _load(config)
    try:
        server = Server(config.server_options(), {SERVICE: register(servicer)})
        port = await server.start(serving=False)
        address = with_port(config.address, port)
        servicer.advertise(config.advertised_address or address)
        await server.set_serving(True)
        say_ready(address)
        await server.serve_until_stopped()
    finally:
        await servicer.close()


def _load(config: TargetConfig) -> TargetServicer:
    def load() -> tuple[BuiltTarget, target_pb2.DescribeTargetResponse]:
        loaded = load_target_parts(config.model, dtype=config.dtype, device=config.device)
        numerics = cast(Numerics, config.numerics)
        built = build_target(loaded, numerics=numerics, limits=config.target_limits())
        return built, describe(loaded, built, max_sessions=config.max_sessions)

    thread = EngineThread("target")
    built, about = load_on(thread.call, load, Cores(config.threads, config.pin_threads))
    _LOG.info("model %s, incarnation %s", about.identity.model_id, about.identity.incarnation)
    _LOG.info("memory: %s", built.memory)
    batch = BatchLimits(built.rows, config.max_waiting)
    return TargetServicer(built.target, about, config.lease_limits(), thread=thread, batch=batch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
