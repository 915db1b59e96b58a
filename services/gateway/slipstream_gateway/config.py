"""Options of the HTTP front."""

import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.client.connection import router_target
from slipstream.config import are_local
from slipstream.core.errors import InvalidRequest, host_and_port
from slipstream.core.request.request import DEFAULT_MAX_TOKENS, MAX_MAX_TOKENS
from slipstream.files import read_token
from slipstream.options import check_bounds, option
from slipstream.rpc.security import ClientTls, ServerTls
from slipstream.rpc.service_options import DEFAULT_ADDRESSES, PeerTlsOptions, TlsOptions

SECTION = "http"
ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"(?!https://.*:443$|http://.*:80$)[a-z][a-z0-9+.-]*://[^/\s,@?#A-Z]+|null")
MAX_WAIT_S = 86_400
"""Limit of the times that a connection may wait for its client."""


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Options of the HTTP front."""

    router: str = option(DEFAULT_ADDRESSES["router"], "The router, or several with commas between.")
    listen_address: str = option(DEFAULT_ADDRESSES["http"], "Where to listen.")
    token_file: Path | None = option(
        None, "A file with the token for requests that have none of their own."
    )
    plaintext_tokens: bool = option(
        False, "Whether callers' tokens may go to a router elsewhere without TLS."
    )
    allowed_origins: tuple[str, ...] = option(
        (), "Origins whose pages may call, such as https://chat.example; * for any."
    )
    page: bool = option(False, "Whether to serve a page to chat on at /.")
    default_max_tokens: int = option(
        DEFAULT_MAX_TOKENS,
        "Limit on the new tokens of a chat that sets none.",
        least=1,
        most=MAX_MAX_TOKENS,
    )
    timeout_s: float = option(600.0, "Longest time for a request.", above=0)
    header_timeout_s: float = option(
        30.0,
        "Longest time in seconds for a request's headers to arrive, or a TLS handshake.",
        above=0,
        most=MAX_WAIT_S,
    )
    body_timeout_s: float = option(30.0, "Longest time for a request's body to arrive.", above=0)
    send_timeout_s: float = option(
        60.0,
        "A caller that reads nothing for so many seconds is cut off, and its request ends.",
        above=0,
        most=MAX_WAIT_S,
    )
    keep_alive_s: float = option(
        75.0,
        "Seconds that a connection stays open between requests; proxies keep theirs for 60.",
        above=0,
        most=MAX_WAIT_S,
    )
    stream_keep_alive_s: float = option(
        10.0,
        "A stream without an event for so many seconds gets a comment line; 0 for none.",
        least=0,
        most=MAX_WAIT_S,
    )
    max_connections: int = option(
        1000, "Connections at once; each one more gets an error and is closed.", above=0
    )
    max_body_bytes: int = option(4 << 20, "Largest body taken, in bytes.", above=0)
    grace_s: float = option(
        30.0, "Time for requests to finish when told to stop.", least=0, most=MAX_WAIT_S
    )
    tls_cert: Path | None = option(None, "Certificate to serve HTTPS with.")
    tls_key: Path | None = option(None, "Its private key.")
    peer_ca: Path | None = option(None, "Dial the router with TLS, trusting this certificate.")
    peer_cert: Path | None = option(None, "Certificate to show to the router.")
    peer_key: Path | None = option(None, "Its private key.")
    peer_router_name: str | None = option(
        None, "Name that routers' certificates must carry; unset, that of the address."
    )

    def __post_init__(self) -> None:
        self._check_origins()
        check_bounds(self)
        router_target(self.router)
        self.host_and_port()
        self.tls()
        if self.to_router() is None and not (are_local(self.router) or self.plaintext_tokens):
            raise InvalidRequest(
                f"the router is {self.router}, so callers' tokens would travel in the clear; give"
                " peer_ca, or allow it with plaintext_tokens"
            )

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
                raise InvalidRequest(
                    f"allowed_origins has {origin!r}, but an origin is written as browsers send it:"
                    " a scheme and a host in lower case, a port that is not the scheme's own, and"
                    " no path"
                )
        if ANY_ORIGIN in self.allowed_origins and len(self.allowed_origins) > 1:
            raise InvalidRequest("allowed_origins has * beside other origins")

    def host_and_port(self) -> tuple[str, int]:
        """Return where to listen. Raises `InvalidRequest`."""
        return host_and_port("listen_address", self.listen_address)

    def tls(self) -> ServerTls | None:
        """Return how to serve HTTPS; None for HTTP."""
        return TlsOptions(self.tls_cert, self.tls_key).server()

    def to_router(self) -> ClientTls | None:
        """Return how to dial the router; None for plaintext."""
        peer = PeerTlsOptions(self.peer_ca, self.peer_cert, self.peer_key)
        return peer.client(self.peer_router_name)

    def token(self) -> str | None:
        return None if self.token_file is None else read_token(self.token_file)
