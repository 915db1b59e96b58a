"""Where a Redis is, read from a URL. Holds no secrets, and never repeats what might be one."""

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from slipstream.core.errors import InvalidRequest

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
FORMS = (
    "redis://HOST:PORT/DB, unix:///PATH?db=DB, redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB or"
    " redis+cluster://HOST:PORT,HOST:PORT (rediss instead of redis for TLS)"
)


class Kind(Enum):
    """How the servers stand to each other."""

    SINGLE = "single"
    UNIX = "unix"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Address:
    """Servers to ask: `nodes` are hosts and ports, of sentinels for a master with a name."""

    kind: Kind
    is_tls: bool = False
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """Of a Unix socket."""
    master: str = ""
    """How sentinels call it."""
    db: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.UNIX:
            return self.path
        nodes = ", ".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{self.master} of {nodes}" if self.master else nodes


_SCHEMES = {
    "redis": (Kind.SINGLE, False),
    "rediss": (Kind.SINGLE, True),
    "unix": (Kind.UNIX, False),
    "redis+sentinel": (Kind.SENTINEL, False),
    "rediss+sentinel": (Kind.SENTINEL, True),
    "redis+cluster": (Kind.CLUSTER, False),
    "rediss+cluster": (Kind.CLUSTER, True),
}


def parse_address(url: str) -> Address:
    """The servers that a URL names. Raises `InvalidRequest`, also for a password inside."""
    if "@" in url:
        raise InvalidRequest(
            "store_url holds a user or password, which does not belong there: give store_user, and"
            " the password as a file (store_password_file) or in the environment (store_password)"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidRequest(f"store_url can't be read, but must be {FORMS}") from None
    if parts.scheme not in _SCHEMES:
        raise InvalidRequest(f"store_url begins with {parts.scheme!r}, but must be {FORMS}")
    kind, is_tls = _SCHEMES[parts.scheme]
    if kind is Kind.UNIX:
        return _unix(parts)
    if parts.query or parts.fragment:
        raise InvalidRequest(f"store_url ends in a query, but must be {FORMS}")
    words = [unquote(word) for word in parts.path.split("/") if word]
    port = DEFAULT_SENTINEL_PORT if kind is Kind.SENTINEL else DEFAULT_PORT
    nodes = tuple(_node(text, port) for text in parts.netloc.split(","))
    if kind is Kind.SINGLE and len(nodes) > 1:
        raise InvalidRequest("store_url names several servers, which redis+sentinel or +cluster do")
    master = _master(words) if kind is Kind.SENTINEL else ""
    if len(words) > (0 if kind is Kind.CLUSTER else 1):
        raise InvalidRequest(f"store_url has {'/'.join(words)!r} left over, but must be {FORMS}")
    return Address(kind, is_tls, nodes, master=master, db=_db(words[0]) if words else 0)


def _unix(parts: SplitResult) -> Address:
    query = dict(parse_qsl(parts.query))
    if parts.netloc or not parts.path or parts.fragment or not query.keys() <= {"db"}:
        raise InvalidRequest(f"store_url is not the path of a socket, but must be {FORMS}")
    return Address(Kind.UNIX, path=unquote(parts.path), db=_db(query.get("db", "0")))


def _node(text: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
    port = default_port if found is None or found[2] is None else int(found[2])
    if found is None or not 0 < port < 1 << 16:
        raise InvalidRequest(f"store_url names the server {text!r}, but must be {FORMS}")
    return found[1].strip("[]"), port


def _master(words: list[str]) -> str:
    if not words:
        raise InvalidRequest(f"store_url names no master, but must be {FORMS}")
    return words.pop(0)


def _db(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise InvalidRequest(f"store_url has the database {text!r}, but must be {FORMS}")
    return int(text)
