"""Configuration of a router. Values only; `slipstream.config` reads them."""

from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.core.errors import InvalidRequest, check
from slipstream.core.policy.options import DRAFTERS
from slipstream.core.request.request import NO_DRAFTER
from slipstream.options import check_bounds, group, option
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.exchange import MAX_ANSWER_BYTES
from slipstream.rpc.interceptors import CallLimits
from slipstream.rpc.server import ServerOptions
from slipstream.rpc.service_options import DEFAULT_ADDRESSES, PeerTlsOptions, TlsOptions
from slipstream.state.options import StoreOptions
from slipstream.state.session_leases import KeepRules
from slipstream.state.store import Bounds
from slipstream_router.replicas.replica import Heartbeat

MAX_FIELDS = 10_000
"""Most fields of a message to a router; prompts of `MAX_MESSAGES` and all options have fewer."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Options of a router."""

    listen: ServerOptions = group(
        ServerOptions, address=option(DEFAULT_ADDRESSES["router"], "Address to listen on.")
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
    heartbeat: Heartbeat = group(Heartbeat)
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
    bounds: Bounds = group(Bounds)
    keep: KeepRules = group(KeepRules)
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
    park_ttl_s: float = option(
        300.0, "How long engines keep a session's keys and values for its next turn.", above=0
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
        self.server_options()
        self.to_targets()
        self.to_drafts()

    def server_options(self) -> ServerOptions:
        limits = CallLimits(self.send_timeout_s, self.request_timeout_s, MAX_FIELDS)
        return replace(self.listen, limits=limits, tls=self.tls.server())

    def to_targets(self) -> ChannelOptions:
        return self.peer.channel(self.peer_target_name)

    def to_drafts(self) -> ChannelOptions:
        return self.peer.channel(self.peer_draft_name, max_message_bytes=MAX_ANSWER_BYTES)
