"""Options that services share: where they listen, TLS on both sides, and how replicas serve."""

from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.options import Bounded, option
from slipstream.rpc.channel import MAX_MESSAGE_BYTES, ChannelOptions
from slipstream.rpc.security import ClientTls, ServerTls, named_callers
from slipstream.rpc.server import MAX_STREAMS, ListenOptions, ServerOptions

DEFAULT_ADDRESSES = {
    "router": "127.0.0.1:50051",
    "target": "127.0.0.1:50061",
    "draft": "127.0.0.1:50062",
    "http": "127.0.0.1:8000",
}
"""Addresses on which services listen unless their options say otherwise."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificate that a service shows, and the authority of its callers' certificates."""

    cert: Path | None = option(None, "Certificate to serve TLS with.")
    key: Path | None = option(None, "Its private key.")
    client_ca: Path | None = option(None, "Callers must show a certificate signed by this.")

    def server(self) -> ServerTls | None:
        """Return how to serve TLS; None for plaintext. Raises `InvalidRequest`."""
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("tls_cert and tls_key go together only")
        if self.cert is None or self.key is None:
            if self.client_ca is not None:
                raise InvalidRequest("tls_client_ca needs tls_cert and tls_key")
            return None
        return ServerTls(self.cert, self.key, self.client_ca)


@dataclass(frozen=True, slots=True)
class PeerTlsOptions:
    """TLS of a service's own calls to replicas."""

    ca: Path | None = option(None, "Dial replicas with TLS, trusting this certificate.")
    cert: Path | None = option(None, "Certificate to show to replicas.")
    key: Path | None = option(None, "Its private key.")

    def channel(
        self, name: str | None, *, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> ChannelOptions:
        """Return how to dial replicas whose certificates carry `name`. Raises `InvalidRequest`."""
        return ChannelOptions(tls=self.client(name), max_message_bytes=max_message_bytes)

    def client(self, name: str | None) -> ClientTls | None:
        """Return the TLS to peers whose certificates carry `name`. Raises `InvalidRequest`."""
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("peer_cert and peer_key go together only")
        if self.ca is None:
            if self.cert is not None:
                raise InvalidRequest("peer_cert and peer_key need peer_ca")
            if name is not None:
                raise InvalidRequest(f"the name {name!r} of replicas' certificates needs peer_ca")
            return None
        return ClientTls(self.ca, self.cert, self.key, name)


@dataclass(frozen=True, slots=True)
class SessionOptions(Bounded):
    """Limits of an engine's sessions, and the time that parked ones are kept."""

    max_sessions: int = option(64, "Sessions held at once, parked ones included.", above=0)
    max_parked_bytes: int = option(
        1 << 30,
        "Bytes kept for the next turns of sessions; those of the API key with most go first.",
        least=0,
    )
    max_park_ttl_s: float = option(
        600.0, "Longest time that a router may ask to keep them.", above=0
    )


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Address at which routers reach a draft or a target, and which of them may call it."""

    advertised_address: str | None = option(
        None, "Where drafts and routers reach it; unset, where it listens."
    )
    max_streams: int | None = option(
        None, "Calls that one connection may have open; unset, 256, or twice max_sessions if more."
    )
    tls_client_names: tuple[str, ...] = option(
        (),
        "Names of routers, one of which a caller's certificate must carry; unset, any certificate"
        " that tls_client_ca signed will do.",
    )

    def server_options(
        self, listen: ListenOptions, tls: TlsOptions, max_sessions: int, **more: tuple[str, ...]
    ) -> ServerOptions:
        """Return how to serve; `more` are other callers by method. Raises `InvalidRequest`."""
        usual = max(MAX_STREAMS, 2 * max_sessions)
        return ServerOptions(
            **asdict(listen),
            max_connections=0,  # routers keep them for as long as both are there
            max_connection_idle_s=0.0,
            max_connection_age_s=0.0,
            max_streams=usual if self.max_streams is None else self.max_streams,
            tls=tls.server(),
            callers=named_callers(tls.client_ca, self.tls_client_names, **more),
        )
