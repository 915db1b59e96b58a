"""Configuration of a router. Values only; `slipstream.config` reads them."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import InvalidRequest, check
from slipstream.core.policy.options import DRAFTERS
from slipstream.core.request.request import NO_DRAFTER
from slipstream.options import check_bounds, group, option
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.exchange import MAX_ANSWER_BYTES
from slipstream.rpc.interceptors import CallLimits
from slipstream.rpc.server import MAX_STREAMS, ServerOptions
from slipstream.rpc.service_options import (
    DEFAULT_ADDRESSES,
    ListenOptions,
    PeerTlsOptions,
    TlsOptions,
)
from slipstream.state.options import StoreOptions
from slipstream_router.replicas.replica import Heartbeat

MAX_FIELDS = 10_000
"""Most fields of a message to a router; prompts of `MAX_MESSAGES` and all options have fewer."""
ALLOW, REFUSE = "allow", "refuse"
"""New requests while the store does not answer."""
_CONNECTIONS = (
    *("max_streams", "max_connections"),
    *("max_connection_idle_s", "max_connection_age_s", "max_connection_age_grace_s"),
)
"""Options of the server by the same names."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Options of a router."""

    listen: ListenOptions = group(
        ListenOptions, address=option(DEFAULT_ADDRESSES["router"], "Address to listen on.")
    )
    targets: tuple[str, ...] = option(
        (), "Target replicas: addresses, or a single dns:///NAME:PORT, file:PATH or registry:."
    )
    drafts: tuple[str, ...] = option(
        (), "Draft replicas, in the same forms; without any, only n-grams are drafted."
    )
    drafter: str | None = option(
        None,
        "Drafter of requests that name none: glide, eagle3, vanilla, ngram or none; unset, the"
        " best one.",
    )
    ngrams: tuple[str, ...] = option(
        ("auto",),
        "Files of `slipstream train ngrams` to draft with; auto for those shipped, or none.",
    )
    heartbeat_s: float = option(1.0, "Seconds between two heartbeats of a replica.")
    replica_timeout_s: float = option(
        5.0, "Seconds without an answer after which a replica is lost."
    )
    target_round_timeout_s: float = option(30.0, "Longest time for a verification.", above=0)
    target_token_timeout_s: float = option(
        0.02, "Time that each token of a prompt adds to target_round_timeout_s.", above=0
    )
    draft_round_timeout_s: float = option(
        2.0, "Longest time for a proposal; then a plain round.", above=0
    )
    draft_token_timeout_s: float = option(
        0.005, "Time that each token of a prompt adds to draft_round_timeout_s.", above=0
    )
    max_requests: int = option(64, "Requests that run at once; more are refused.", above=0)
    target_queue_s: float = option(
        60.0,
        "Longest time that a round waits for memory of its target; then it is refused.",
        least=0,
        most=86_400,
    )
    send_timeout_s: float = option(
        60.0,
        "Seconds for a caller to read one message of a stream; then the stream ends, and the caller"
        " may resume it by the same request.",
        above=0,
    )
    request_timeout_s: float = option(
        1800.0, "Longest time of a request in seconds, also where its caller allows more.", above=0
    )
    target_wait_s: float = option(
        30.0, "How long a request that has lost its target waits for another one.", above=0
    )
    max_sessions: int = option(
        10_000,
        "Sessions and requests kept in memory; an idle one of the API key with most goes first.",
        above=0,
    )
    max_sessions_bytes: int = option(
        256 << 20,
        "Memory for them, in bytes, and as much again for writes that wait for a silent store.",
        above=0,
    )
    session_ttl_s: float = option(3600.0, "How long a session is kept without a turn.", above=0)
    request_ttl_s: float = option(
        600.0, "How long the answer to a request without a session is kept.", above=0
    )
    lease_s: float = option(
        15.0,
        "How long a session stays locked after its router has stopped renewing its lease.",
        above=0,
    )
    store: StoreOptions = group(
        StoreOptions,
        "store_",
        url=option(
            None, "Redis that keeps the sessions of all routers; unset, each router keeps its own."
        ),
        timeout_s=option(
            0.1, "Longest time for the store to answer; then a request goes on without it."
        ),
    )
    store_down: str = option(
        ALLOW, "New requests while the store does not answer: allow, or refuse."
    )
    park_ttl_s: float = option(
        300.0, "How long engines keep a session's keys and values for its next turn.", above=0
    )
    max_streams: int = option(MAX_STREAMS, "Calls that one connection may have open at once.")
    max_connections: int = option(
        1000, "Connections at once; further ones are closed. 0 for no limit."
    )
    max_connection_idle_s: float = option(
        300.0, "Seconds without a call after which a connection is closed; 0 for never."
    )
    max_connection_age_s: float = option(
        300.0,
        "Seconds after which callers must dial anew, so that they find new routers; 0 for never.",
    )
    max_connection_age_grace_s: float = option(
        3600.0,
        "Longest time for requests on a connection of that age; more than any request takes.",
    )
    tls: TlsOptions = group(TlsOptions, "tls_")
    peer: PeerTlsOptions = group(PeerTlsOptions, "peer_")
    peer_target_name: str | None = option(
        None, "Name that targets' certificates must carry; unset, that of the address."
    )
    peer_draft_name: str | None = option(
        None, "Name that drafts' certificates must carry; unset, that of the address."
    )
    key_file: Path | None = option(
        None, "TOML file of API keys, read again when it changes; unset, no key is needed."
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        kinds = (*DRAFTERS, NO_DRAFTER)
        is_right = self.drafter in (None, *kinds)
        check(is_right, "drafter", self.drafter, f"one of {', '.join(kinds)}")
        if not self.targets:
            raise InvalidRequest("a router needs targets, and none are named")
        self.heartbeat()
        is_right = self.store_down in (ALLOW, REFUSE)
        check(is_right, "store_down", self.store_down, f"{ALLOW} or {REFUSE}")
        self.server_options()
        self.to_targets()
        self.to_drafts()

    def server_options(self) -> ServerOptions:
        limits = CallLimits(self.send_timeout_s, self.request_timeout_s, MAX_FIELDS)
        own = {name: getattr(self, name) for name in _CONNECTIONS}
        return self.listen.server_options(self.tls, limits=limits, **own)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.heartbeat_s, self.replica_timeout_s)

    def to_targets(self) -> ChannelOptions:
        return self.peer.channel(self.peer_target_name)

    def to_drafts(self) -> ChannelOptions:
        return self.peer.channel(self.peer_draft_name, max_message_bytes=MAX_ANSWER_BYTES)
