"""A Redis-compatible server whose file keeps all that it has acknowledged, whatever kills it."""

import asyncio
from pathlib import Path

from chaos.member import Command
from chaos.nursery import Forked
from support.state.redis_server import valkey_binary


def command(folder: Path, port: int) -> Command:
    """A server at a port. What it answers is written to its file before: a kill loses nothing."""
    words = [str(valkey_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]

    async def serves(_: Forked) -> bool:
        return await _answers(port)

    return Command(words, serves)


async def _answers(port: int) -> bool:
    """Whether it has read its file and takes commands."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
