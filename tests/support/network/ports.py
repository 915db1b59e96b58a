"""Ports for servers of tests that must know theirs before they listen."""

import random
import socket

_LOWEST, _HIGHEST = 20_000, 32_000
"""Below the system's ephemeral ports: no other process takes one before its server does."""
_TRIES = 100


def free_ports(count: int) -> list[int]:
    """Return `count` different ports without a listener."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(_LOWEST, _HIGHEST), _TRIES + count):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"of {_TRIES + count} ports only {len(ports)} are free, but {count} are needed")


def free_port() -> int:
    [port] = free_ports(1)
    return port
