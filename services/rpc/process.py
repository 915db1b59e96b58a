"""What every service does as a process: options, logging, the line `ready HOST:PORT`, exit codes.

Knows nothing of what is served, nor of gRPC.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from slipstream.config import load_config, parse_flags, resolved
from slipstream.core.errors import InvalidRequest, ModelError, SlipstreamError

BAD_INPUT = 2
"""Exit code of a process that was told what it can't use; there is no sense in trying again."""
FAILED = 1
"""Exit code of one that failed in any other way."""

C = TypeVar("C")


def run_service(
    role: str,
    options: Callable[..., C],
    serve: Callable[[C], Coroutine[Any, Any, None]],
    *,
    argv: Sequence[str],
    doc: str,
) -> int:
    """Read the role's `options`, log and `serve` them to the end; the process's exit code.

    `doc` says in `--help` what this is. Errors are one sentence on standard error; what is no
    `SlipstreamError` is a bug and passes through.
    """
    prog = f"slipstream.{role}"
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        flags, file = parse_flags(options, argv, prog=prog, doc=doc)
        config = load_config(options, section=role, file=file, flags=flags)
        logging.getLogger(prog).info("configuration %s", json.dumps(resolved(config)))
        asyncio.run(serve(config))
    except SlipstreamError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_INPUT if isinstance(error, InvalidRequest | ModelError) else FAILED
    return 0


def with_port(address: str, port: int) -> str:
    """An address to listen on, with the port that came of it."""
    return f"{address.rpartition(':')[0]}:{port}"


def say_ready(address: str) -> None:
    """Tell whoever started this process where it serves."""
    sys.stdout.write(f"ready {address}\n")
    sys.stdout.flush()
