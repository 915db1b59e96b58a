"""What a router can be told. Values only; reading them is `slipstream.config`'s part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.options import DRAFTERS
from slipstream.core.request import NO_DRAFTER
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.security import ClientTls, ServerTls
from slipstream.rpc.server import ServerOptions

_POSITIVE = (
    "target_round_timeout_s",
    "target_token_timeout_s",
    "draft_round_timeout_s",
    "draft_token_timeout_s",
    "max_requests",
    "max_sessions",
    "session_ttl_s",
    "park_ttl_s",
)


def _help(text: str) -> dict[str, Any]:
    return {"help": text}


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything a router can be told."""

    address: str = field(default="127.0.0.1:50051", metadata=_help("Where to listen."))
    targets: tuple[str, ...] = field(
        default=(),
        metadata=_help(
            "Target replicas: addresses, or one dns:///NAME:PORT or file:PATH that lists them."
        ),
    )
    drafts: tuple[str, ...] = field(
        default=(), metadata=_help("Draft replicas, likewise; none for n-gram drafting only.")
    )
    drafter: str | None = field(
        default=None,
        metadata=_help(
            "Of requests that name none: glide, vanilla, ngram or none; else the best there is."
        ),
    )
    target_round_timeout_s: float = field(
        default=30.0, metadata=_help("Longest time for a verification.")
    )
    target_token_timeout_s: float = field(
        default=0.02, metadata=_help("More of it for every token of a prompt.")
    )
    draft_round_timeout_s: float = field(
        default=2.0, metadata=_help("Longest time for a proposal; then a plain round.")
    )
    draft_token_timeout_s: float = field(
        default=0.005, metadata=_help("More of it for every token of a prompt.")
    )
    max_requests: int = field(
        default=64, metadata=_help("Requests that run at once; more are refused.")
    )
    max_sessions: int = field(
        default=10_000, metadata=_help("Sessions remembered; the longest unused go first.")
    )
    session_ttl_s: float = field(
        default=3600.0, metadata=_help("How long a session is remembered without a turn.")
    )
    park_ttl_s: float = field(
        default=300.0, metadata=_help("How long engines keep a session's keys for its next turn.")
    )
    grace_s: float = field(
        default=30.0, metadata=_help("Time for requests to finish when told to stop.")
    )
    max_message_bytes: int = field(default=4 << 20, metadata=_help("Largest request taken."))
    token_file: Path | None = field(
        default=None, metadata=_help("Bearer tokens that callers must show, one per line.")
    )
    tls_cert: Path | None = field(default=None, metadata=_help("Certificate to serve TLS with."))
    tls_key: Path | None = field(default=None, metadata=_help("Its private key."))
    tls_client_ca: Path | None = field(
        default=None, metadata=_help("Callers must show a certificate signed by this.")
    )
    worker_ca: Path | None = field(
        default=None, metadata=_help("Dial replicas with TLS, trusting this certificate.")
    )
    worker_cert: Path | None = field(
        default=None, metadata=_help("Certificate to show to replicas.")
    )
    worker_key: Path | None = field(default=None, metadata=_help("Its private key."))
    health_address: str | None = field(
        default=None, metadata=_help("A plaintext port that serves health alone.")
    )

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be above 0")
        if self.drafter not in (None, NO_DRAFTER, *DRAFTERS):
            kinds = ", ".join([*DRAFTERS, NO_DRAFTER])
            raise InvalidRequest(f"drafter is {self.drafter!r}, but must be one of {kinds}")
        if not self.targets:
            raise InvalidRequest("a router needs targets, and none are named")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert and tls_key go together only")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequest("tls_client_ca needs tls_cert and tls_key")
        if self.worker_cert is not None and self.worker_ca is None:
            raise InvalidRequest("worker_cert needs worker_ca")
        self.server_options()
        self.channel_options()

    def server_options(self) -> ServerOptions:
        """Where and how to serve."""
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)
        return ServerOptions(
            address=self.address,
            max_message_bytes=self.max_message_bytes,
            grace_s=self.grace_s,
            tls=tls,
            health_address=self.health_address,
        )

    def channel_options(self) -> ChannelOptions:
        """How to dial replicas."""
        if self.worker_ca is None:
            return ChannelOptions()
        return ChannelOptions(tls=ClientTls(self.worker_ca, self.worker_cert, self.worker_key))
