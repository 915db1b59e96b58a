"""Connections to services. A lost peer is found within 15 seconds, on idle connections too."""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from slipstream.config import are_local
from slipstream.core.errors import InvalidRequest, check
from slipstream.files import ReloadedFiles, Stamp
from slipstream.rpc.exchange import MAX_ANSWER_BYTES, parsed
from slipstream.rpc.security import ClientTls

KEEPALIVE_S = 10
KEEPALIVE_TIMEOUT_S = 5
CONNECT_S = 5
LONGEST_WAIT_MS = 2000
"""Between two attempts to reach a service, and to learn where it is."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message that a client accepts: a tokenizer is the largest there is."""


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Options of a channel to a service. `token` is sent as a bearer token.

    With `balances`, calls are spread over all the addresses that a name resolves to. Answers have
    up to `max_message_bytes`.
    """

    tls: ClientTls | None = None
    token: str | None = None
    balances: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InvalidRequest("a bearer token is printable ASCII without line breaks")


class Dialer:
    """Opens channels that are alike, but for certificates: each has those of its time."""

    def __init__(self, options: ChannelOptions) -> None:
        """Raises `InvalidRequest` for certificates that can't be used; later ones are logged."""
        self._options = options
        tls = options.tls
        self._tls = None if tls is None else ReloadedFiles(tls.files, tls.credentials)

    def stamp(self) -> Stamp:
        """Another one once a new channel would come with other certificates than the last."""
        if self._tls is None:
            return ()
        self._tls.refresh()
        return self._tls.stamp

    def __call__(self, address: str) -> grpc.aio.Channel:
        """A channel for asyncio; nothing is sent before the first call. Close it."""
        where, arguments = check_address(address), _arguments(address, self._options)
        if self._tls is None:
            return grpc.aio.insecure_channel(where, options=arguments)
        self._tls.refresh()
        return grpc.aio.secure_channel(where, self._tls.value, options=arguments)


def connect(address: str, options: ChannelOptions) -> grpc.aio.Channel:
    """A channel for asyncio; nothing is sent before the first call. Close it."""
    return Dialer(options)(address)


def connect_sync(address: str, options: ChannelOptions) -> grpc.Channel:
    where, arguments = check_address(address), _arguments(address, options)
    if options.tls is None:
        return grpc.insecure_channel(where, options=arguments)
    return grpc.secure_channel(where, options.tls.credentials(), options=arguments)


def metadata(options: ChannelOptions) -> tuple[tuple[str, str], ...]:
    if options.token is None:
        return ()
    return (("authorization", f"Bearer {options.token}"),)


def check_address(address: str) -> str:
    """The address; `InvalidRequest` unless it is HOST:PORT or a gRPC name, as dns:///NAME:PORT."""
    host, _, port = address.rpartition(":")
    is_name = address.startswith(("dns:", "ipv4:", "ipv6:", "unix:", "xds:"))
    is_port = port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536
    is_plain = bool(host) and "://" not in host and is_port
    is_one = not any(char.isspace() for char in address)
    check(is_one and (is_name or is_plain), "the address", address, "HOST:PORT")
    return address


def keepalive() -> list[tuple[str, Any]]:
    """Options of either side."""
    return [
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        # What counts for pings that are under way when a peer stops; by itself it is a minute.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _arguments(address: str, options: ChannelOptions) -> list[tuple[str, Any]]:
    config: dict[str, Any] = (
        {"loadBalancingConfig": [{"round_robin": {}}]} if options.balances else {}
    )
    name = None if options.tls is None else options.tls.name
    return [
        *keepalive(),
        *([] if name is None else [("grpc.default_authority", name)]),
        # A proxy elsewhere does not reach what listens here.
        *([("grpc.enable_http_proxy", 0)] if are_local(address) else []),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Only messages that their sender marks as safe are sent again.
        ("grpc.enable_retries", 0),
        ("grpc.service_config", json.dumps(config)),
        # Reconnecting must not wait minutes for a service that is back after seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this is how long an attempt may take: TLS is several round trips.
        ("grpc.min_reconnect_backoff_ms", CONNECT_S * 1000),
        ("grpc.max_reconnect_backoff_ms", LONGEST_WAIT_MS),
        # A name is looked up again when a connection ends; by itself gRPC does so twice a minute
        # at most, and who has moved, or came later, would be found that much later.
        ("grpc.dns_min_time_between_resolutions_ms", LONGEST_WAIT_MS),
        ("grpc.use_local_subchannel_pool", 1),
    ]


M = TypeVar("M", bound=Message)


async def call_unary(
    channel: grpc.aio.Channel,
    method: str,
    request: Message,
    kind: type[M],
    *,
    timeout_s: float | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> M:
    """Return the answer. Raises `grpc.aio.AioRpcError`, and `InternalError` for other bytes.

    The answer is parsed here: gRPC gives None for bytes that are no message, and logs a traceback.
    """
    call: Any = channel.unary_unary(method)
    answer: bytes = await call(request.SerializeToString(), timeout=timeout_s)
    return parsed(kind, answer, "it", max_bytes=max_bytes)
