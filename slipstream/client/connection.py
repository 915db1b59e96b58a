"""Connections to routers: addresses, credentials, and channels that wait or block."""

import asyncio
import ipaddress
import random
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from slipstream.client.retries import NO_RETRIES, Retries, RetryTimeouts
from slipstream.config import are_local, host_in
from slipstream.core.errors import Cancelled, InvalidRequest, SessionClosed
from slipstream.rpc.channel import ChannelOptions, check_address, connect, connect_sync
from slipstream.rpc.security import ClientTls
from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceStub

if TYPE_CHECKING:
    from slipstream.rpc.v1.generation_pb2_grpc import GenerationServiceAsyncStub


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses of routers, credentials, and how long to try."""

    target: str
    options: ChannelOptions
    timeouts: RetryTimeouts
    allows_tokens: bool = True
    """Permission to send the bearer token: over plaintext only where the caller allows it."""

    @property
    def address(self) -> str:
        """Return the address as callers write it."""
        return self.target.removeprefix("ipv4:").removeprefix("ipv6:")

    def with_token(self, token: str | None) -> "Connection":
        """Return the same for another caller. Raises `InvalidRequest` for a token in the clear."""
        if token is not None and not self.allows_tokens:
            raise InvalidRequest(
                f"the token would travel in the clear to {self.address}; pass tls, or tls=False to"
                " allow it"
            )
        return replace(self, options=replace(self.options, token=token))

    def channel(self, *, is_blocking: bool) -> "RouterChannel":
        return BlockingChannel(self) if is_blocking else AsyncChannel(self)

    def retries(self, timeout_s: float | None) -> Retries:
        return Retries(timeout_s, self.timeouts, clock=time.monotonic, draw=random.random)


def connection(
    address: str, *, token: str | None, tls: ClientTls | bool | None, retries: bool
) -> Connection:
    """Return a connection. Raises `InvalidRequest` for no address, and for a token in the clear."""
    trusted = ClientTls() if tls is True else tls or None
    target = router_target(address)
    has_several = target.startswith(("ipv4:", "ipv6:")) and "," in target
    if trusted is not None and trusted.name is None and has_several:
        raise InvalidRequest(
            f"the routers are {address}, so tls must give the name that their certificates share"
        )
    options = ChannelOptions(tls=trusted, balances=True)
    timeouts = RetryTimeouts() if retries else NO_RETRIES
    to = Connection(target, options, timeouts, tls is not None or are_local(address))
    return to.with_token(token)


def closed_meanwhile() -> Cancelled:
    """Return the error of a request whose client was closed under it."""
    return Cancelled("the client was closed while the request ran")


class AsyncChannel:
    """A channel for asyncio. Clients with different tokens may share it.

    Belongs to the loop of the first call, which opens it.
    """

    def __init__(self, to: Connection) -> None:
        self._to = to
        self._channel: grpc.aio.Channel | None = None
        self.is_closed = False

    async def call(self, method: str, request: object, **options: Any) -> Any:
        """Return the answer to one call.

        Raises `grpc.RpcError`, `SessionClosed` once it is closed, or `Cancelled` when it is closed
        meanwhile.
        """
        return await _uncancelled(getattr(self._stub(), method)(request, **options))

    def start(self, request: object, **options: Any) -> Any:
        """Start a stream of generation. Raises `SessionClosed` once it is closed."""
        stub: Any = self._stub()
        return stub.GenerateStream(request, **options)

    async def read(self, stream: Any) -> Any:
        """Return the next message of a stream; None after the last. Raises what `call` does."""
        message = await _uncancelled(stream.read())
        return None if message is grpc.aio.EOF else message

    async def pause(self, seconds: float) -> None:
        """Wait. Raises `Cancelled` when it is closed meanwhile."""
        await asyncio.sleep(seconds)
        if self.is_closed:
            raise closed_meanwhile()

    async def aclose(self) -> None:
        """Close it, and end the calls on it."""
        self.is_closed = True
        if self._channel is not None:
            await self._channel.close()

    def _stub(self) -> "GenerationServiceAsyncStub":
        if self.is_closed:
            raise SessionClosed("the client is closed")
        if self._channel is None:  # here, where a loop runs
            self._channel = connect(self._to.target, self._to.options)
        return GenerationServiceStub(self._channel)


async def _uncancelled(answer: Awaitable[Any]) -> Any:
    """Raise `Cancelled` for a call that ends with its channel; tasks are cancelled as ever."""
    try:
        return await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise closed_meanwhile() from None


class BlockingChannel:
    """See `AsyncChannel`: one for threads, which blocks. They may share it."""

    def __init__(self, to: Connection) -> None:
        self._channel = connect_sync(to.target, to.options)
        self._stub: Any = GenerationServiceStub(self._channel)
        self._closing = threading.Event()
        self.is_closed = False

    async def call(self, method: str, request: object, **options: Any) -> Any:
        self._require_open()
        try:
            return getattr(self._stub, method)(request, **options)
        except grpc.RpcError:
            self._check_closed()
            raise

    def start(self, request: object, **options: Any) -> Any:
        self._require_open()
        return self._stub.GenerateStream(request, **options)

    async def read(self, stream: Any) -> Any:
        try:
            return next(stream, None)
        except grpc.RpcError:
            self._check_closed()
            raise

    async def pause(self, seconds: float) -> None:
        self._closing.wait(seconds)
        self._check_closed()

    async def aclose(self) -> None:
        self.is_closed = True
        self._closing.set()
        self._channel.close()

    def _require_open(self) -> None:
        if self.is_closed:
            raise SessionClosed("the client is closed")

    def _check_closed(self) -> None:
        if self.is_closed:
            raise closed_meanwhile() from None


RouterChannel = AsyncChannel | BlockingChannel


def router_target(address: str) -> str:
    """Return what gRPC is to dial. Raises `InvalidRequest`.

    Several addresses, with commas between, are IP addresses of one kind: a name that stands for
    several hosts is resolved by the DNS.
    """
    if "," not in address or "://" in address or address.startswith(("unix:", "ipv4:", "ipv6:")):
        return check_address(address)
    parts = [check_address(part.strip()) for part in address.split(",")]
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        raise InvalidRequest(
            f"the addresses are {address!r}, but several must be all IPv4 or all IPv6"
        )
    return f"{kinds.pop()}:{','.join(parts)}"


def _kind(part: str) -> str:
    try:
        return f"ipv{ipaddress.ip_address(host_in(part)).version}"
    except ValueError:
        raise InvalidRequest(
            f"one of several addresses is {part!r}, but must be IP:PORT; a name that stands for"
            " several routers is written dns:///NAME:PORT"
        ) from None
