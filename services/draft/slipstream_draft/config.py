"""Configuration of a draft service. Values only; `slipstream.config` reads them."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import check
from slipstream.models.memory import ComputeOptions, DraftMemory
from slipstream.models.scorer import NUM_SINKS, usual_window
from slipstream.options import check_bounds, group, option
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.kv import KvEncoding
from slipstream.rpc.protocol import check_advertised
from slipstream.rpc.server import ListenOptions, ServerOptions
from slipstream.rpc.service_options import (
    DEFAULT_ADDRESSES,
    PeerTlsOptions,
    ReplicaOptions,
    SessionOptions,
    TlsOptions,
)
from slipstream.state.options import StoreOptions
from slipstream_draft.kv_sources import KvSources, usual_sources


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Options of a draft service."""

    listen: ListenOptions = group(
        ListenOptions, address=option(DEFAULT_ADDRESSES["draft"], "Address to listen on.")
    )
    replica: ReplicaOptions = group(
        ReplicaOptions,
        advertised_address=option(
            None, "Where routers reach it when it announces itself; unset, where it listens."
        ),
    )
    draft: str = option(
        "glide",
        "The draft: glide, ngram, vanilla:MODEL, eagle3:HEAD or a directory of GliDe weights.",
    )
    profile: Path | None = option(
        None, "Profile file of `slipstream calibrate`; unset, the draft's own."
    )
    target_model: str = option(
        "smollm2-135m-q4_1",
        "The target that a GliDe or an EAGLE-3 draft is for; other drafts do not use it.",
    )
    ngrams: tuple[str, ...] = option(
        ("auto",),
        "Files of `slipstream train ngrams` that the draft ngram looks up, by the tokenizer of each"
        " target; auto for those shipped, none for copies of the request's own text alone.",
    )
    compute: ComputeOptions = group(ComputeOptions)
    sessions: SessionOptions = group(SessionOptions)
    kv_wait_ms: float = option(
        10.0, "Longest wait for the target's newest keys and values before a proposal.", least=0
    )
    kv_catch_up_ms: float = option(
        50.0,
        "Longest wait at a request's start for keys and values without which nothing can be"
        " drafted.",
        least=0,
    )
    kv_encoding: str = option("raw", "Encoding of keys and values on the wire: raw or int8.")
    window: int | None = option(
        None,
        "Newest tokens of a long text whose keys and values in the target a GliDe draft reads, or"
        " whose hidden states an EAGLE-3 head, beside those of the first 128; 0: all; unset, 256"
        " for GliDe and 2048 for a head. Other drafts do not use it.",
        least=0,
    )
    kv_sources: tuple[str, ...] = option(
        (),
        "Targets that it may dial for keys and values: HOST:PORT, where HOST may be a network such"
        " as 10.0.0.0/8, *.NAME or *, and PORT *; unset, any, or those of this machine where it"
        " listens on a loopback address.",
    )
    tls: TlsOptions = group(TlsOptions, "tls_")
    peer: PeerTlsOptions = group(
        PeerTlsOptions,
        "peer_",
        ca=option(None, "Dial targets with TLS, trusting this certificate."),
        cert=option(None, "Certificate to show to targets."),
    )
    peer_target_name: str | None = option(
        None, "Name that targets' certificates must carry; unset, that of the address."
    )
    store: StoreOptions = group(
        StoreOptions, "store_", timeout_s=option(1.0, "Longest time for the store to answer.")
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        self.server_options()
        advertised = self.replica.advertised_address
        if self.store.url is not None or advertised is not None:
            check_advertised(self.listen.address, advertised, reader="router")
        self.to_targets()
        self.sources()
        is_right = not 0 < self.num_newest < NUM_SINKS
        check(is_right, "window", self.window, f"0 or at least {NUM_SINKS}")
        is_right = self.kv_encoding in set(KvEncoding)
        check(is_right, "kv_encoding", self.kv_encoding, " or ".join(KvEncoding))

    @property
    def num_newest(self) -> int:
        """The window, where it is unset the usual one of the draft."""
        return usual_window(self.draft) if self.window is None else self.window

    def server_options(self) -> ServerOptions:
        """Return where and how to serve."""
        return self.replica.server_options(self.listen, self.tls, self.sessions.max_sessions)

    def to_targets(self) -> ChannelOptions:
        """Return how to dial targets."""
        return self.peer.channel(self.peer_target_name)

    def sources(self) -> KvSources:
        """Return the targets that may be dialled. Raises `InvalidRequest` for a bad pattern."""
        return KvSources(self.kv_sources or usual_sources(self.listen.address))

    def memory(self, *, is_mirroring: bool = False) -> DraftMemory:
        """Return the memory for keys and values."""
        return DraftMemory(self.compute.kv_memory, self.sessions.max_sessions, is_mirroring)
