"""TLS on either side of a connection, from files. Reads them when a connection is set up."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from slipstream.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with `client_ca`, callers must show one that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises `InvalidRequest` for a file that can't be read."""
        authority = None if self.client_ca is None else read(self.client_ca)
        return grpc.ssl_server_credentials(
            [(read(self.key), read(self.cert))],
            root_certificates=authority,
            require_client_auth=authority is not None,
        )


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom a caller trusts (`ca`; None for the system's roots), and what it shows, if anything."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("a client's certificate and its key go together only")

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises `InvalidRequest` for a file that can't be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=None if self.ca is None else read(self.ca),
            private_key=None if self.key is None else read(self.key),
            certificate_chain=None if self.cert is None else read(self.cert),
        )


def read(path: Path) -> bytes:
    """A file's bytes; `InvalidRequest` where it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read ({error.strerror})") from None
