"""Services as processes: options, telemetry, the line `ready HOST:PORT`, exit codes."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from slipstream.config import load_config, parse_flags, resolved
from slipstream.core.errors import BAD_INPUT, FAILED, InvalidRequest, ModelError, SlipstreamError
from slipstream.telemetry.config import JSON, SECTION, TelemetryConfig
from slipstream.telemetry.logs import set_up_logging
from slipstream.telemetry.metric import Telemetry
from slipstream.telemetry.setup import telemetry

C = TypeVar("C")


def run_service(
    role: str,
    options: Callable[..., C],
    serve: Callable[[C, Telemetry], Coroutine[Any, Any, None]],
    *,
    argv: Sequence[str],
    doc: str,
) -> int:
    """Read the role's `options`, and `serve` them to the end with telemetry; the exit code.

    `doc` is the description of `--help`. Errors are one sentence on standard error; what is no
    `SlipstreamError` is a bug and passes through.
    """
    prog = f"slipstream serve {role}"
    try:
        (own, shared), file = parse_flags([options, TelemetryConfig], argv, prog=prog, doc=doc)
        config = load_config(options, section=role, file=file, flags=own)
        spoken = load_config(TelemetryConfig, section=SECTION, file=file, flags=shared)
        set_up_logging(as_json=spoken.log_format == JSON, level=spoken.log_level, role=role)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # process 1 would ignore it
        log = logging.getLogger(f"slipstream.{role}")
        for told in (config, spoken):
            log.info("configuration %s", json.dumps(resolved(told)))
        _keep_all()
        with telemetry(spoken, role) as listening:
            asyncio.run(serve(config, listening))
    except SlipstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT if isinstance(error, InvalidRequest | ModelError) else FAILED
    return 0


def with_port(address: str, port: int) -> str:
    """An address to listen on, with the port that came of it."""
    return f"{address.rpartition(':')[0]}:{port}"


def say_ready(address: str) -> None:
    """Write where this process serves; what was loaded by now is there for good."""
    _keep_all()
    sys.stdout.write(f"ready {address}\n")
    sys.stdout.flush()


def _keep_all() -> None:
    """Exempt all present objects from garbage collection: code and weights take hundreds of
    milliseconds at each full collection, on whichever thread comes to it."""
    gc.collect()
    gc.freeze()
