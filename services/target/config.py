"""What a target can be told. Values only; reading them is `slipstream.config`'s part."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from slipstream.core.errors import InvalidRequest
from slipstream.models.causal import Numerics
from slipstream.rpc.channel import check_address
from slipstream.rpc.leases import LeaseLimits
from slipstream.rpc.security import ServerTls
from slipstream.rpc.server import ServerOptions

_POSITIVE = ("max_sessions", "max_park_ttl_s")
_NOT_NEGATIVE = ("max_parked_bytes", "grace_s")


def _help(text: str) -> dict[str, Any]:
    return {"help": text}


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Everything a target can be told."""

    model: str = field(
        default="smollm2-135m", metadata=_help("An alias, a path or OWNER/NAME of the hub.")
    )
    dtype: str = field(default="bfloat16", metadata=_help("bfloat16, float16 or float32."))
    device: str = field(default="cpu", metadata=_help("cpu, cuda or cuda:N."))
    numerics: str = field(
        default="invariant",
        metadata=_help(
            "invariant: a token depends on its prefix only, whatever is computed beside it;"
            " or fast."
        ),
    )
    threads: int | None = field(
        default=None, metadata=_help("CPU threads to compute with; none takes every core.")
    )
    pin_threads: bool = field(
        default=False,
        metadata=_help("Keep each of them on a core of its own; for cores that services share."),
    )
    address: str = field(default="127.0.0.1:50061", metadata=_help("Where to listen."))
    advertised_address: str | None = field(
        default=None, metadata=_help("Where drafts reach it; none for where it listens.")
    )
    max_sessions: int = field(
        default=64, metadata=_help("Sessions held at once, parked ones included.")
    )
    max_parked_bytes: int = field(
        default=1 << 30,
        metadata=_help("Bytes of keys and values kept for next turns; the oldest go first."),
    )
    max_park_ttl_s: float = field(
        default=600.0, metadata=_help("Longest time that a router may ask to keep them.")
    )
    grace_s: float = field(
        default=30.0, metadata=_help("Time for requests to finish when told to stop.")
    )
    max_message_bytes: int = field(default=4 << 20, metadata=_help("Largest message taken."))
    tls_cert: Path | None = field(default=None, metadata=_help("Certificate to serve TLS with."))
    tls_key: Path | None = field(default=None, metadata=_help("Its private key."))
    tls_client_ca: Path | None = field(
        default=None, metadata=_help("Callers must show a certificate signed by this.")
    )
    health_address: str | None = field(
        default=None, metadata=_help("A plaintext port that serves health alone.")
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.numerics not in get_args(Numerics):
            known = " or ".join(get_args(Numerics))
            raise InvalidRequest(f"numerics is {self.numerics!r}, but must be {known}")
        if self.advertised_address is not None:
            check_address(self.advertised_address)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("tls_cert and tls_key go together only")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequest("tls_client_ca needs tls_cert and tls_key")
        self.server_options()

    def _check_numbers(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be above 0")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be 0 or more")
        if self.threads is not None and self.threads < 1:
            raise InvalidRequest(f"threads is {self.threads}, but must be at least 1")

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

    def lease_limits(self) -> LeaseLimits:
        """How much is held and kept."""
        return LeaseLimits(self.max_sessions, self.max_parked_bytes, self.max_park_ttl_s)
