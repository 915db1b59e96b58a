"""Connections to one endpoint of Redis. Imported only where one is configured."""

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from redis import exceptions as faults
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from slipstream.core.errors import InvalidRequest, Unavailable
from slipstream.state.options import Address, StoreOptions

MAX_CONNECTIONS = 1024
"""Connections of a process to one server: one for each operation that runs at once."""
_NO_PERMISSION = "does not let its user do what is needed; see its ACL"
_NO_MEMORY = "has no memory left"
_IS_REPLICA = "is a replica, which can't be written"

_REASONS: tuple[tuple[Any, str], ...] = (
    (faults.TimeoutError | TimeoutError, "did not answer in time"),
    (faults.AuthenticationError, "does not take this user or password"),
    (faults.NoPermissionError, _NO_PERMISSION),
    (faults.OutOfMemoryError, _NO_MEMORY),
    (faults.ReadOnlyError, _IS_REPLICA),
    (faults.BusyLoadingError, "is still reading its data"),
    (faults.MaxConnectionsError, "gets too many requests at once"),
    (faults.MovedError | faults.ClusterDownError, "is part of a Redis Cluster, which is not used"),
)
_SCRIPT_REASONS = {
    "NOPERM": _NO_PERMISSION,
    "ACL failure": _NO_PERMISSION,
    "-OOM": _NO_MEMORY,
    "-READONLY": _IS_REPLICA,
}
"""Reasons that some versions put into the middle of a line about the script."""


class RedisClient:
    """Runs scripts in one Redis."""

    def __init__(self, client: Redis, *, timeout_s: float, place: str) -> None:
        """`client` is closed with this; `place` is for errors."""
        self._client = client
        self._timeout_s = timeout_s
        self._place = place
        self._is_closed = False

    async def run(
        self, script: str, keys: Sequence[str], args: Sequence[Any], *, again: bool = True
    ) -> Any:
        """Return a script's answer. Raises `Unavailable`.

        `again`: it may run twice, which it does when a connection breaks.
        """
        if self._is_closed:
            raise Unavailable(f"the store at {self._place} is closed")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._evaluate(script, keys, args, again=again)
        except (faults.RedisError, OSError) as error:
            if isinstance(error, faults.ReadOnlyError):
                # The endpoint may lead to another server by now.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise Unavailable(f"the store at {self._place} {_reason(error)}") from None

    async def aclose(self) -> None:
        """Refuse what comes, and end connections and what waits for them. May be repeated."""
        self._is_closed = True
        await self._client.aclose()

    async def _evaluate(
        self, script: str, keys: Sequence[str], args: Sequence[Any], *, again: bool
    ) -> Any:
        command: Any = self._client.execute_command
        rest = (len(keys), *keys, *args)
        try:
            return await command("EVALSHA", _digest(script), *rest)
        except faults.NoScriptError:
            return await command("EVAL", script, *rest)
        except faults.ConnectionError as error:
            # Such as of a server that was restarted behind an idle connection.
            if self._is_closed or not again or type(error) is not faults.ConnectionError:
                raise
        return await command("EVAL", script, *rest)


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _reason(error: BaseException) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    if isinstance(error, faults.ResponseError):
        text = str(error)
        found = (reason for sign, reason in _SCRIPT_REASONS.items() if sign in text)
        # Only its first word: the rest may quote what was sent.
        return next(found, f"fails ({text.split(' ', 1)[0][:40]})")
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and (system := _system_reason(cause)):
            return system
    return "can't be reached"


def _system_reason(error: OSError) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"does not agree on TLS ({error.reason or 'it hung up'})"
    if isinstance(error, socket.gaierror):  # its numbers are not the system's
        return f"can't be found ({error.strerror})"
    return f"can't be reached ({os.strerror(error.errno)})" if error.errno else None


class _FreshTls(SSLConnection):
    """TLS with the files as they are when it connects: they may have been replaced since."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = None
        return super()._connection_arguments()


def connect(options: StoreOptions) -> Redis:
    """Return a client, which connects when first used. Raises `InvalidRequest` without a URL."""
    address = options.address()
    if address is None:
        raise InvalidRequest("there is no store_url to connect to")
    shared: dict[str, Any] = {
        "db": address.db,
        "username": options.user,
        "password": options.secret(),
        # `RedisClient` has one. For this, `redis` uses what loses cancellations before Python 3.12.
        "socket_timeout": None,
        "socket_connect_timeout": options.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # 3 greets with a command more, and has nothing that is needed
        "driver_info": None,  # whose commands a user may not be allowed
    }
    pool: ConnectionPool
    if address.path:
        pool = ConnectionPool(
            UnixDomainSocketConnection, MAX_CONNECTIONS, path=address.path, **shared
        )
    else:
        kind = _FreshTls if address.is_tls else Connection
        shared |= _tls(address, options) | {"host": address.host, "port": address.port}
        pool = ConnectionPool(kind, MAX_CONNECTIONS, **shared)
    return Redis.from_pool(pool)  # which is closed with the client


def _tls(address: Address, options: StoreOptions) -> dict[str, Any]:
    if not address.is_tls:
        return {}
    files = {"ca_certs": options.ca, "certfile": options.cert, "keyfile": options.key}
    return {f"ssl_{name}": str(path) for name, path in files.items() if path is not None}
