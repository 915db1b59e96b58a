"""`python -m slipstream_gateway`: the HTTP front as a process."""

import sys
from collections.abc import Sequence

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.process import run_service, say_ready
from slipstream.telemetry.metric import Telemetry
from slipstream_gateway.config import SECTION, HttpConfig

_EXTRA = ("fastapi", "uvicorn")


def main(argv: Sequence[str]) -> int:
    """Serve until stopped; return the exit code."""
    return run_service(SECTION, HttpConfig, _serve, argv=argv, doc=str(__doc__))


async def _serve(config: HttpConfig, telemetry: Telemetry) -> None:
    try:
        from slipstream_gateway.server import Gateway  # noqa: PLC0415 - needs an extra's packages
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        raise InvalidRequest(
            f"serving HTTP needs {missing.name}: pip install 'slipstream[gateway]'"
        ) from None
    gateway = Gateway(config, telemetry)
    try:
        say_ready(await gateway.start())
        await gateway.serve_until_stopped()
    finally:
        await gateway.stop(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
