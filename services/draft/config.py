"""What a draft service can be told. Values only; reading them is `slipstream.config`'s part."""

from dataclasses import dataclass
from pathlib import Path

from slipstream.config import option
from slipstream.core.errors import InvalidRequest
from slipstream.draft.memory import DraftMemory
from slipstream.draft.servicer import DraftSettings
from slipstream.draft.sources import KvSources, usual_sources
from slipstream.models.memory import AUTO, check_budget
from slipstream.rpc.advertised import check_advertised
from slipstream.rpc.callers import named_callers
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.kv import KvEncoding
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.security import peer_tls, server_tls
from slipstream.rpc.server import ServerOptions, stream_limit
from slipstream.state.options import store_options

_LEAST = {
    "max_sessions": 1,
    "max_parked_bytes": 0,
    "kv_wait_ms": 0,
    "kv_catch_up_ms": 0,
    "threads": 1,
}


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Everything a draft service can be told."""

    address: str = option("127.0.0.1:50062", "Where to listen.")
    advertised_address: str | None = option(
        None, "Where routers reach it when it announces itself; unset, where it listens."
    )
    draft: str = option(
        "glide", "The draft: glide, ngram, vanilla:MODEL or a directory of GliDe weights."
    )
    profile: Path | None = option(
        None, "Profile file of `slipstream calibrate`; unset, the draft's own."
    )
    target_model: str = option(
        "smollm2-135m", "The target that a GliDe draft is for; of no use to the others."
    )
    dtype: str = option("auto", "Element type of the weights: auto, bfloat16, float16 or float32.")
    device: str = option("cpu", "Where the draft runs: cpu, cuda or cuda:N.")
    threads: int | None = option(None, "CPU threads to compute with; unset, every core.")
    pin_threads: bool = option(
        False, "Keep each of them on a core of its own; for cores that services share."
    )
    max_sessions: int = option(64, "Sessions held at once, parked ones included.")
    kv_memory: str = option(
        AUTO, "Memory for keys and values: a size such as 2GiB, a share of what is free, or auto."
    )
    max_parked_bytes: int = option(
        1 << 30, "Bytes kept for next turns; the longest parked go first."
    )
    max_park_ttl_s: float = option(600.0, "Longest time that a router may ask to keep them.")
    kv_wait_ms: float = option(10.0, "Longest wait for the newest keys before a proposal.")
    kv_catch_up_ms: float = option(
        50.0, "Longest wait at a request's start for keys without which nothing can be drafted."
    )
    kv_encoding: str = option("raw", "How keys and values travel: raw or int8.")
    max_message_bytes: int = option(4 << 20, "Largest message taken, in bytes.")
    max_streams: int | None = option(
        None, "Calls that one connection may have open; unset, 256, or twice max_sessions if more."
    )
    grace_s: float = option(30.0, "Time for requests to finish when told to stop.")
    tls_cert: Path | None = option(None, "Certificate to serve TLS with.")
    tls_key: Path | None = option(None, "Its private key.")
    tls_client_ca: Path | None = option(None, "Callers must show a certificate signed by this.")
    tls_client_names: tuple[str, ...] = option(
        (), "It must carry one of these names, those of routers; unset, any certificate will do."
    )
    peer_ca: Path | None = option(None, "Dial targets with TLS, trusting this certificate.")
    peer_cert: Path | None = option(None, "Certificate to show to targets.")
    peer_key: Path | None = option(None, "Its private key.")
    peer_target_name: str | None = option(
        None, "Name that targets' certificates must carry; unset, that of the address."
    )
    kv_sources: tuple[str, ...] = option(
        (),
        "Targets that it may dial for keys and values: HOST:PORT, where HOST may be a network such"
        " as 10.0.0.0/8, *.NAME or *, and PORT *; unset, any, or those of this machine where it"
        " listens on a loopback address.",
    )
    store_url: str | None = option(
        None, "Redis to announce itself in, for routers whose replicas are registry:."
    )
    store_user: str | None = option(None, "User there.")
    store_password: str | None = option(None, "The user's password.", secret=True)
    store_password_file: Path | None = option(None, "A file with the user's password.")
    store_ca: Path | None = option(None, "Trust this certificate there; unset, the system's.")
    store_cert: Path | None = option(None, "Certificate to show there.")
    store_key: Path | None = option(None, "Its private key.")
    store_prefix: str = option("slipstream", "What every key there begins with.")
    store_timeout_s: float = option(1.0, "Longest time for the store to answer.")
    health_address: str | None = option(None, "A plaintext port that serves health alone.")

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InvalidRequest(f"{name} is {value}, but must be {least} or more")
        if not self.max_park_ttl_s > 0:
            raise InvalidRequest(f"max_park_ttl_s is {self.max_park_ttl_s}, but must be above 0")
        check_budget(self.kv_memory)
        if self.store_url is not None or self.advertised_address is not None:
            check_advertised(self.address, self.advertised_address, reader="router")
        store_options(self)
        self.server_options()
        self.to_targets()
        self.sources()
        self.settings()

    def server_options(self) -> ServerOptions:
        """Where and how to serve."""
        return ServerOptions(
            address=self.address,
            max_message_bytes=self.max_message_bytes,
            max_streams=stream_limit(self.max_streams, self.max_sessions),
            grace_s=self.grace_s,
            tls=server_tls(self.tls_cert, self.tls_key, self.tls_client_ca),
            callers=named_callers(self.tls_client_ca, self.tls_client_names),
            health_address=self.health_address,
        )

    def to_targets(self) -> ChannelOptions:
        """How to dial targets."""
        files = self.peer_ca, self.peer_cert, self.peer_key
        return ChannelOptions(tls=peer_tls(*files, self.peer_target_name))

    def sources(self) -> KvSources:
        """Which targets may be dialled. Raises `InvalidRequest` for a pattern that is none."""
        return KvSources(self.kv_sources or usual_sources(self.address))

    def memory(self, *, is_mirroring: bool = False) -> DraftMemory:
        """What may be taken for keys and values."""
        return DraftMemory(self.kv_memory, self.max_sessions, is_mirroring)

    def settings(self) -> DraftSettings:
        """How to serve sessions. Raises `InvalidRequest` for an unknown encoding."""
        if self.kv_encoding not in set(KvEncoding):
            known = " or ".join(KvEncoding)
            raise InvalidRequest(f"kv_encoding is {self.kv_encoding!r}, but must be {known}")
        return DraftSettings(
            limits=LeaseLimits(self.max_sessions, self.max_parked_bytes, self.max_park_ttl_s),
            kv_wait_s=self.kv_wait_ms / 1000,
            kv_catch_up_s=self.kv_catch_up_ms / 1000,
            kv_encoding=KvEncoding(self.kv_encoding),
        )
