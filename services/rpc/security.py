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


def server_tls(
    tls_cert: Path | None, tls_key: Path | None, tls_client_ca: Path | None
) -> ServerTls | None:
    """What a service's options of these names mean; None for no TLS. Raises `InvalidRequest`."""
    if (tls_cert is None) != (tls_key is None):
        raise InvalidRequest("tls_cert and tls_key go together only")
    if tls_cert is None or tls_key is None:
        if tls_client_ca is not None:
            raise InvalidRequest("tls_client_ca needs tls_cert and tls_key")
        return None
    return ServerTls(tls_cert, tls_key, tls_client_ca)


def peer_tls(
    peer_ca: Path | None, peer_cert: Path | None, peer_key: Path | None
) -> ClientTls | None:
    """Likewise for whom a service calls."""
    if (peer_cert is None) != (peer_key is None):
        raise InvalidRequest("peer_cert and peer_key go together only")
    if peer_ca is None:
        if peer_cert is not None:
            raise InvalidRequest("peer_cert and peer_key need peer_ca")
        return None
    return ClientTls(peer_ca, peer_cert, peer_key)


def read(path: Path) -> bytes:
    """A file's bytes; `InvalidRequest` where it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read ({error.strerror})") from None
