"""Ports of this machine: whether one can be listened on."""

import socket

from slipstream.core.errors import ServiceError


def require_free(role: str, port: int) -> None:
    """Raise `ServiceError` for a port that the service `role` could not listen on; 0 is any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServiceError(
                f"the {role} can't start: the address 127.0.0.1:{port} can't be listened on"
                f" ({error.strerror})"
            ) from None
