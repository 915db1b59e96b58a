"""Several servers that belong together: a master that sentinels watch, and a cluster."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from support.network.ports import free_port, free_ports
from support.state.redis_server import LIMIT_S, RedisServer

MASTER = "main"
NUM_SLOTS = 16384


@contextmanager
def watched_master(*flags: str) -> Iterator[tuple[str, RedisServer, RedisServer]]:
    """A URL of a sentinel, the master and its replica."""
    with ExitStack() as running:
        first = running.enter_context(_server(*flags))
        to_master = ("--replicaof", f"127.0.0.1 {first.port}")
        second = running.enter_context(_server(*flags, *to_master))
        _until(lambda: second.call("INFO", "replication")["master_link_status"] == "up")
        folder = Path(running.enter_context(TemporaryDirectory(prefix="sentinel")))
        settings = folder / "sentinel.conf"
        lines = (
            f"sentinel monitor {MASTER} 127.0.0.1 {first.port} 1",
            f"sentinel down-after-milliseconds {MASTER} 200",
            f"sentinel failover-timeout {MASTER} 2000",
        )
        settings.write_text("\n".join(lines))
        watcher = RedisServer(folder, str(settings), "--sentinel", port=free_port())
        running.enter_context(watcher)
        _until(lambda: watcher.call("SENTINEL", "REPLICAS", MASTER))
        yield f"redis+sentinel://127.0.0.1:{watcher.port}/{MASTER}", first, second


@contextmanager
def cluster(num_nodes: int) -> Iterator[tuple[str, list[RedisServer]]]:
    """A URL of a cluster's first node, and all of its nodes; each has its part of the slots."""
    with ExitStack() as running:
        buses = [str(port) for port in free_ports(num_nodes)]
        flags = ("--cluster-enabled", "yes", "--cluster-port")
        nodes = [running.enter_context(_server(*flags, bus)) for bus in buses]
        for number, node in enumerate(nodes):
            first, after = (NUM_SLOTS * at // num_nodes for at in (number, number + 1))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.call("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            if number:
                node.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, buses[0])
        for node in nodes:
            _until(lambda node=node: b"cluster_state:ok" in node.call("CLUSTER", "INFO"))
        yield f"redis+cluster://127.0.0.1:{nodes[0].port}", nodes


@contextmanager
def _server(*flags: str) -> Iterator[RedisServer]:
    with (
        TemporaryDirectory(prefix="redis") as folder,
        RedisServer(Path(folder), *flags, port=free_port()) as server,
    ):
        yield server


def _until(is_so: Callable[[], object]) -> None:
    """Servers say nothing when they have found each other: they are asked again and again."""
    last = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < last, "servers have not found each other"
        time.sleep(0.01)
