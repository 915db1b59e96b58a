"""What a router can be told. Values only; reading them is `slipstream.config`'s part."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.config import option
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import DRAFTERS
from slipstream.core.request import NO_DRAFTER
from slipstream.router.heartbeat import Heartbeat
from slipstream.router.learner import KEY, OFF, LearnOptions
from slipstream.router.shadow import ShadowOptions
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.exchange import MAX_ANSWER_BYTES
from slipstream.rpc.interceptors import CallLimits
from slipstream.rpc.security import peer_tls, server_tls
from slipstream.rpc.server import MAX_STREAMS, ServerOptions
from slipstream.state.options import store_options
from slipstream.state.record import Bounds
from slipstream.state.session_leases import KeepRules

_POSITIVE = (
    "target_round_timeout_s",
    "target_token_timeout_s",
    "draft_round_timeout_s",
    "draft_token_timeout_s",
    "max_requests",
    "max_sessions",
    "max_sessions_bytes",
    "session_ttl_s",
    "request_ttl_s",
    "lease_s",
    "target_wait_s",
    "park_ttl_s",
    "send_timeout_s",
    "request_timeout_s",
    "learn_tokens",
    "learn_ttl_s",
)
_LONGEST_QUEUE_S = 86400.0
MAX_FIELDS = 10_000
"""Of a message to a router; more than prompts of `MAX_MESSAGES` and all options have."""
ALLOW, REFUSE = "allow", "refuse"
"""What becomes of new requests while the store does not answer."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything a router can be told."""

    address: str = option("127.0.0.1:50051", "Where to listen.")
    targets: tuple[str, ...] = option(
        (), "Target replicas: addresses, or one of dns:///NAME:PORT, file:PATH and registry: alone."
    )
    drafts: tuple[str, ...] = option((), "Draft replicas, likewise; none for n-gram drafting only.")
    drafter: str | None = option(
        None, "Of requests that name none: glide, vanilla, ngram or none; unset, the best there is."
    )
    ngrams: tuple[str, ...] = option(
        ("auto",), "Files of `slipstream train ngrams` to draft with; auto for those shipped."
    )
    heartbeat_s: float = option(1.0, "How often replicas are asked what they hold.")
    replica_timeout_s: float = option(5.0, "A replica that is silent for so long is lost.")
    target_round_timeout_s: float = option(30.0, "Longest time for a verification.")
    target_token_timeout_s: float = option(0.02, "More of it for every token of a prompt.")
    draft_round_timeout_s: float = option(2.0, "Longest time for a proposal; then a plain round.")
    draft_token_timeout_s: float = option(0.005, "More of it for every token of a prompt.")
    max_requests: int = option(64, "Requests that run at once; more are refused.")
    target_queue_s: float = option(
        60.0, "Longest time that a round waits for memory of its target; then it is refused."
    )
    send_timeout_s: float = option(
        60.0,
        "Seconds for a caller to take one message of a stream; then the stream ends, and the same"
        " request again goes on.",
    )
    request_timeout_s: float = option(
        1800.0, "Longest time of a request in seconds, whatever its caller allows."
    )
    target_wait_s: float = option(
        30.0, "How long a request that has lost its target waits for another one."
    )
    max_sessions: int = option(
        10_000,
        "Sessions and requests remembered in memory; of the key with most, an idle one goes first.",
    )
    max_sessions_bytes: int = option(
        256 << 20,
        "Memory for them, in bytes, and as much for what a silent store is yet to keep.",
    )
    session_ttl_s: float = option(3600.0, "How long a session is remembered without a turn.")
    request_ttl_s: float = option(
        600.0, "How long the answer to a request without a session is remembered."
    )
    lease_s: float = option(
        15.0, "How long a session stays busy for others when its router says nothing."
    )
    store_url: str | None = option(
        None, "Redis that sessions are kept in, for all routers; unset, each keeps its own."
    )
    store_user: str | None = option(None, "User there.")
    store_password: str | None = option(None, "The user's password.", secret=True)
    store_password_file: Path | None = option(None, "A file with the user's password.")
    store_ca: Path | None = option(None, "Trust this certificate there; unset, the system's.")
    store_cert: Path | None = option(None, "Certificate to show there.")
    store_key: Path | None = option(None, "Its private key.")
    store_prefix: str = option("slipstream", "What every key there begins with.")
    store_timeout_s: float = option(
        0.1, "Longest time for the store to answer; then a request goes on without."
    )
    store_down: str = option(
        ALLOW, "New requests while the store does not answer: allow, or refuse."
    )
    park_ttl_s: float = option(300.0, "How long engines keep a session's keys for its next turn.")
    learn: str = option(
        OFF, "Draft from texts of earlier requests: off, key (of the same API key), or model (all)."
    )
    learn_tokens: int = option(500_000, "Tokens of such texts kept in memory.")
    learn_ttl_s: float = option(
        86_400.0, "How long such a text is kept in memory, and how long in the store, at most."
    )
    shadow_rate: float = option(0.0, "Share of requests decoded again without drafts, to compare.")
    shadow_queue: int = option(16, "How many of them may wait; more are not checked.")
    max_message_bytes: int = option(4 << 20, "Largest message taken, in bytes.")
    max_streams: int = option(MAX_STREAMS, "Calls that one connection may have open at once.")
    max_connections: int = option(
        1000, "Connections at once; one more is closed as it comes. 0 for no limit."
    )
    max_connection_idle_s: float = option(
        300.0, "A connection without a call for so many seconds is closed; 0 for never."
    )
    max_connection_age_s: float = option(
        300.0, "After so long callers dial anew, and find routers that came later; 0 for never."
    )
    max_connection_age_grace_s: float = option(
        3600.0, "Longest time for requests on such a connection; above that of any generation."
    )
    grace_s: float = option(30.0, "Time for requests to finish when told to stop.")
    tls_cert: Path | None = option(None, "Certificate to serve TLS with.")
    tls_key: Path | None = option(None, "Its private key.")
    tls_client_ca: Path | None = option(None, "Callers must show a certificate signed by this.")
    peer_ca: Path | None = option(None, "Dial replicas with TLS, trusting this certificate.")
    peer_cert: Path | None = option(None, "Certificate to show to replicas.")
    peer_key: Path | None = option(None, "Its private key.")
    peer_target_name: str | None = option(
        None, "Name that targets' certificates must carry; unset, that of the address."
    )
    peer_draft_name: str | None = option(None, "Likewise, of drafts.")
    key_file: Path | None = option(None, "Keys whose tokens open the API: TOML, read on change.")
    health_address: str | None = option(None, "A plaintext port that serves health alone.")

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be above 0")
        if not 0 <= self.target_queue_s <= _LONGEST_QUEUE_S:
            raise InvalidRequest(
                f"target_queue_s is {self.target_queue_s}, but must be 0 to {_LONGEST_QUEUE_S:.0f}"
            )
        if self.drafter not in (None, NO_DRAFTER, *DRAFTERS):
            kinds = ", ".join([*DRAFTERS, NO_DRAFTER])
            raise InvalidRequest(f"drafter is {self.drafter!r}, but must be one of {kinds}")
        if not self.targets:
            raise InvalidRequest("a router needs targets, and none are named")
        self.heartbeat()
        self.shadow_options()
        if self.learn_options().learn == KEY and self.key_file is None:
            raise InvalidRequest(
                f"learn is {KEY!r}, but there is no key_file, so all callers would share what is"
                " learned: name one, or set learn to 'model' where that is meant"
            )
        if self.store_down not in (ALLOW, REFUSE):
            raise InvalidRequest(
                f"store_down is {self.store_down!r}, but must be {ALLOW} or {REFUSE}"
            )
        store_options(self)
        self.server_options()
        self.to_targets()
        self.to_drafts()

    def server_options(self) -> ServerOptions:
        """Where and how to serve."""
        return ServerOptions(
            address=self.address,
            max_message_bytes=self.max_message_bytes,
            max_streams=self.max_streams,
            grace_s=self.grace_s,
            max_connections=self.max_connections,
            max_connection_idle_s=self.max_connection_idle_s,
            max_connection_age_s=self.max_connection_age_s,
            max_connection_age_grace_s=self.max_connection_age_grace_s,
            limits=CallLimits(self.send_timeout_s, self.request_timeout_s, MAX_FIELDS),
            tls=server_tls(self.tls_cert, self.tls_key, self.tls_client_ca),
            health_address=self.health_address,
        )

    def keep_rules(self) -> KeepRules:
        """How long requests are remembered, and what becomes of them without a store."""
        return KeepRules(self.session_ttl_s, self.request_ttl_s, self.store_down == ALLOW)

    def bounds(self) -> Bounds:
        """What is remembered in memory, and how long leases are."""
        return Bounds(self.lease_s, self.max_sessions, self.max_sessions_bytes)

    def heartbeat(self) -> Heartbeat:
        """How replicas are watched."""
        return Heartbeat(self.heartbeat_s, self.replica_timeout_s)

    def shadow_options(self) -> ShadowOptions:
        """What is checked, and how long its rounds may take."""
        return ShadowOptions(
            self.shadow_rate,
            self.shadow_queue,
            self.target_round_timeout_s,
            self.target_token_timeout_s,
        )

    def learn_options(self) -> LearnOptions:
        """What is learned from requests."""
        return LearnOptions(self.learn, self.learn_tokens, self.learn_ttl_s)

    def to_targets(self) -> ChannelOptions:
        """How to dial targets."""
        files = self.peer_ca, self.peer_cert, self.peer_key
        return ChannelOptions(tls=peer_tls(*files, self.peer_target_name))

    def to_drafts(self) -> ChannelOptions:
        """How to dial drafts."""
        files = self.peer_ca, self.peer_cert, self.peer_key
        tls = peer_tls(*files, self.peer_draft_name)
        return ChannelOptions(tls=tls, max_message_bytes=MAX_ANSWER_BYTES)
