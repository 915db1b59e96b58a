"""TLS on either side of a connection, from files that may be replaced while a service runs.

A server looks at its files at each handshake; a caller's connection keeps those it was made with.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from slipstream.core.errors import InvalidRequest, PermissionDenied
from slipstream.files import ReloadedFiles, read_bytes, warn_of_readers

_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


def read_pair(cert: Path | str, key: Path | str) -> tuple[bytes, bytes]:
    """A certificate and its private key. `InvalidRequest` unless they are, and belong together."""
    pair = read_bytes(Path(cert)), read_bytes(Path(key))
    try:
        # With a password, OpenSSL never asks for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRequest(
            f"{cert} and {key} are not a certificate and its private key ({_reason(error)})"
        ) from None
    warn_of_readers(Path(key))
    return pair


def read_authority(path: Path | str) -> bytes:
    """Certificates to trust. `InvalidRequest` for a file that holds none, or half of one."""
    data = read_bytes(Path(path))
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (OSError, TypeError, ValueError) as error:  # the last for an empty file
        raise InvalidRequest(f"{path} holds no certificates to trust ({_reason(error)})") from None
    return data


def _reason(error: Exception) -> str:
    reason: str | None = getattr(error, "reason", None)
    return (reason or getattr(error, "strerror", None) or str(error)).lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with `client_ca`, callers must show one that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that are read again at each handshake. Raises `InvalidRequest`."""
        files = tuple(filter(None, (self.cert, self.key, self.client_ca)))
        loaded = ReloadedFiles(files, self._configuration)

        def changed() -> grpc.ServerCertificateConfiguration | None:
            return loaded.value if loaded.refresh() else None

        return grpc.dynamic_ssl_server_credentials(
            loaded.value,
            changed,  # type: ignore[arg-type]  # None stands for no change
            require_client_authentication=self.client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        cert, key = read_pair(self.cert, self.key)
        authority = None if self.client_ca is None else read_authority(self.client_ca)
        return grpc.ssl_server_certificate_configuration([(key, cert)], authority)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS of a client: trusted roots (`ca`; None for the system's) and its certificate, if any.

    `name` is the one that a server's certificate must carry, where it is not the address's own.
    """

    ca: Path | str | None = None
    cert: Path | str | None = None
    key: Path | str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("a client's certificate and its key go together only")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidRequest(f"the server's name is {self.name!r}, but must be a host's name")

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(file) for file in (self.ca, self.cert, self.key) if file is not None)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the present credentials. Raises `InvalidRequest` for files that can't be used."""
        cert = key = None
        if self.cert is not None and self.key is not None:
            cert, key = read_pair(self.cert, self.key)
        ca = None if self.ca is None else read_authority(self.ca)
        return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=cert)


# Keys of gRPC for the alternative names and the common name of a subject.
_NAMED_IN = ("peer_dns", "x509_common_name")


@dataclass(frozen=True, slots=True)
class Callers:
    """Admits callers whose certificate carries one of `names`; all where there are none."""

    names: tuple[str, ...] = ()
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further names that may call a method, by the last part of its name."""

    def check(self, method: str, context: Any) -> None:
        """Raise `PermissionDenied` for others. The method is /PACKAGE.SERVICE/NAME."""
        if not self.names:
            return
        wanted = (*self.names, *self.more.get(method.rpartition("/")[2], ()))
        shown = context.auth_context()
        theirs = [
            name.decode("utf-8", "replace") for part in _NAMED_IN for name in shown.get(part, ())
        ]
        if set(wanted).isdisjoint(theirs):
            who = ", ".join(dict.fromkeys(theirs)) or "nobody"
            allowed = " or ".join(wanted)
            raise PermissionDenied(
                f"{method} is for certificates of {allowed}, but the caller's is of {who}"
            )


def named_callers(
    tls_client_ca: Path | None, tls_client_names: tuple[str, ...], **more: tuple[str, ...]
) -> Callers:
    """Return the callers that a service's options allow. Raises `InvalidRequest`."""
    if tls_client_names and tls_client_ca is None:
        raise InvalidRequest("tls_client_names needs tls_client_ca")
    if any(more.values()) and not tls_client_names:
        raise InvalidRequest("names for one method need tls_client_names for the others")
    return Callers(tls_client_names, more)
