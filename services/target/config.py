"""What a target can be told. Values only; reading them is `slipstream.config`'s part."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from slipstream.config import option
from slipstream.core.errors import InvalidRequest
from slipstream.core.options import MAX_NODES
from slipstream.models.invariance import Numerics
from slipstream.models.memory import AUTO, check_budget
from slipstream.rpc.advertised import check_advertised
from slipstream.rpc.callers import named_callers
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.security import server_tls
from slipstream.rpc.server import ServerOptions, stream_limit
from slipstream.state.options import store_options
from slipstream.target.build import MAX_ROWS, TargetLimits

_POSITIVE = ("max_sessions", "tensor_parallel", "max_park_ttl_s")
_NOT_NEGATIVE = ("max_waiting", "max_parked_bytes", "grace_s")
_LEAST_ROWS = MAX_NODES + 1
"""Of a step: the largest proposal, and the token above it."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Everything a target can be told."""

    address: str = option("127.0.0.1:50061", "Where to listen.")
    advertised_address: str | None = option(
        None, "Where drafts and routers reach it; unset, where it listens."
    )
    model: str = option(
        "smollm2-135m", "An alias, a path or OWNER/NAME of the hub, which @REVISION pins."
    )
    dtype: str = option("auto", "Element type of the weights: auto, bfloat16, float16 or float32.")
    device: str = option("cpu", "Where the model runs: cpu, cuda or cuda:N.")
    numerics: str = option(
        "invariant",
        "invariant: a token depends on its prefix only, whatever is computed beside it; or fast.",
    )
    threads: int | None = option(None, "CPU threads to compute with; unset, every core.")
    tensor_parallel: int = option(
        1, "Processes that share the model, each with a part of every layer and a GPU of its own."
    )
    pin_threads: bool = option(
        False, "Keep each of them on a core of its own; for cores that services share."
    )
    max_sessions: int = option(64, "Sessions held at once, parked ones included.")
    max_waiting: int = option(64, "Requests that may wait for memory; more are refused.")
    max_rows_per_step: int | None = option(
        None, "Tokens of all sessions that one step computes; unset, 256."
    )
    kv_memory: str = option(
        AUTO, "Memory for keys and values: a size such as 2GiB, a share of what is free, or auto."
    )
    max_parked_bytes: int = option(
        1 << 30,
        "Bytes kept for next turns and prompts that begin alike, until they are needed.",
    )
    max_park_ttl_s: float = option(600.0, "Longest time that a router may ask to keep them.")
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
    tls_draft_names: tuple[str, ...] = option(
        (), "Names of drafts, which may read keys and values, and do nothing else."
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
        self._check_numbers()
        if self.numerics not in get_args(Numerics):
            known = " or ".join(get_args(Numerics))
            raise InvalidRequest(f"numerics is {self.numerics!r}, but must be {known}")
        check_budget(self.kv_memory)
        check_advertised(self.address, self.advertised_address, reader="draft")
        self.server_options()
        store_options(self)

    def _check_numbers(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be above 0")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be 0 or more")
        if self.threads is not None and self.threads < 1:
            raise InvalidRequest(f"threads is {self.threads}, but must be at least 1")
        rows = self.max_rows_per_step
        if rows is not None and rows < _LEAST_ROWS:
            raise InvalidRequest(f"max_rows_per_step is {rows}, but must be at least {_LEAST_ROWS}")

    def server_options(self) -> ServerOptions:
        """Where and how to serve."""
        return ServerOptions(
            address=self.address,
            max_message_bytes=self.max_message_bytes,
            max_streams=stream_limit(self.max_streams, self.max_sessions),
            grace_s=self.grace_s,
            tls=server_tls(self.tls_cert, self.tls_key, self.tls_client_ca),
            callers=named_callers(
                self.tls_client_ca, self.tls_client_names, StreamKv=self.tls_draft_names
            ),
            health_address=self.health_address,
        )

    def lease_limits(self) -> LeaseLimits:
        """How many sessions are held, and for how long. What is parked takes no memory away."""
        return LeaseLimits(self.max_sessions, self.max_parked_bytes, self.max_park_ttl_s)

    def target_limits(self) -> TargetLimits:
        """How much the engine holds and computes at once."""
        max_rows = self.max_rows_per_step or MAX_ROWS
        return TargetLimits(self.max_sessions, self.kv_memory, self.max_parked_bytes, max_rows)
