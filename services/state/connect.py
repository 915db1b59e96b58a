"""From the options of a store to a client of Redis, however the servers stand to each other.

Imports `redis`: to be imported itself only where one is configured, as `opening` does.
"""

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff

from slipstream.core.errors import InvalidRequest
from slipstream.state.address import Address, Kind
from slipstream.state.options import StoreOptions

MAX_CONNECTIONS = 1024
"""Of a process to one server: one for each operation that runs at once."""


class FreshTls(SSLConnection):
    """TLS with the files as they are when it connects: they may have been replaced since."""

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = None
        return super()._connection_arguments()


class WatchedPool(SentinelConnectionPool):
    """Connections to the master that sentinels name; those to them end with it."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class FreshSentinelTls(SentinelManagedConnection, FreshTls):
    """The same, to the master that sentinels name."""


def connect(options: StoreOptions) -> Redis | RedisCluster:
    """A client, which dials when it is first used. Raises `InvalidRequest` without a URL."""
    address = options.address()
    if address is None:
        raise InvalidRequest("there is no store_url to connect to")
    match address.kind:
        case Kind.CLUSTER:
            return _cluster(address, options)
        case Kind.SENTINEL:
            return _master(address, options)
        case Kind.UNIX:
            how = _shared(options) | {"path": address.path, "db": address.db}
            return _client(ConnectionPool(UnixDomainSocketConnection, MAX_CONNECTIONS, **how))
    ((host, port),) = address.nodes
    kind = FreshTls if address.is_tls else Connection
    how = _shared(options) | _tls(address, options) | {"host": host, "port": port}
    return _client(ConnectionPool(kind, MAX_CONNECTIONS, db=address.db, **how))


def _client(pool: ConnectionPool) -> Redis:
    return Redis.from_pool(pool)  # which is closed with the client


def _master(address: Address, options: StoreOptions) -> Redis:
    # One sentinel that says nothing must leave time to ask the others, and then the master.
    part_s = options.timeout_s / (len(address.nodes) + 1)
    asked = _shared(options) | {"socket_timeout": part_s, "socket_connect_timeout": part_s}
    asked |= {"username": None, "password": None}  # sentinels have users of their own
    tls = _tls(address, options)
    if tls:
        asked |= {"ssl": True, **tls}
    sentinels = Sentinel(address.nodes, sentinel_kwargs=asked)
    if tls:
        for sentinel in sentinels.sentinels:
            sentinel.connection_pool.connection_class = FreshTls
    kind = FreshSentinelTls if tls else SentinelManagedConnection
    how = _shared(options) | tls | {"db": address.db, "max_connections": MAX_CONNECTIONS}
    pool: Any = WatchedPool  # whose maker has no types
    return _client(pool(address.master, sentinels, connection_class=kind, **how))


def _cluster(address: Address, options: StoreOptions) -> RedisCluster:
    tls = _tls(address, options)
    nodes = [ClusterNode(host, port) for host, port in address.nodes]
    client = RedisCluster(
        startup_nodes=nodes,
        max_connections=MAX_CONNECTIONS,
        ssl=bool(tls),
        **(_shared(options) | tls),
    )
    if tls:
        client.nodes_manager.connection_kwargs["connection_class"] = FreshTls
        for node in client.nodes_manager.startup_nodes.values():
            node.connection_class = FreshTls
    return client


def _shared(options: StoreOptions) -> dict[str, Any]:
    return {
        "username": options.user,
        "password": options.secret(),
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # 3 greets with a command more, and has nothing that is needed
        "driver_info": None,  # whose commands a user may not be allowed
    }


def _tls(address: Address, options: StoreOptions) -> dict[str, Any]:
    if not address.is_tls:
        return {}
    files = {"ca_certs": options.ca, "certfile": options.cert, "keyfile": options.key}
    return {f"ssl_{name}": str(path) for name, path in files.items() if path is not None}
