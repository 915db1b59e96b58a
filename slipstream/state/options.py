"""The `store_*` options of a service, checked, and the servers that its URL names.

Reads the password's file; opens no connection.
"""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from slipstream.core.errors import InvalidRequest
from slipstream.files import read_secret
from slipstream.options import option

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
FORMS = (
    "redis://HOST:PORT/DB, unix:///PATH?db=DB, redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB or"
    " redis+cluster://HOST:PORT,HOST:PORT (rediss instead of redis for TLS)"
)


class Topology(Enum):
    """The relation of the servers to each other."""

    SINGLE = "single"
    UNIX = "unix"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Address:
    """Servers of Redis: `nodes` are hosts and ports, of sentinels for a master with a name."""

    topology: Topology
    is_tls: bool = False
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """Path of a Unix socket."""
    master: str = ""
    """Name of the master among sentinels."""
    db: int = 0

    def __str__(self) -> str:
        if self.topology is Topology.UNIX:
            return self.path
        nodes = ", ".join(f"{host}:{port}" for host, port in self.nodes)
        return f"{self.master} of {nodes}" if self.master else nodes


_SCHEMES = {
    "redis": (Topology.SINGLE, False),
    "rediss": (Topology.SINGLE, True),
    "unix": (Topology.UNIX, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}


def parse_address(url: str) -> Address:
    """Return the servers that a URL names. Raises `InvalidRequest`, also for a password inside.

    Errors repeat nothing that might be a secret.
    """
    if "@" in url:
        raise InvalidRequest(
            "store_url holds a user or password, which does not belong there: give store_user, and"
            " the password as a file (store_password_file) or in the environment (store_password)"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refusal("can't be read") from None
    if parts.scheme not in _SCHEMES:
        raise _refusal(f"begins with {parts.scheme!r}")
    topology, is_tls = _SCHEMES[parts.scheme]
    if topology is Topology.UNIX:
        return _unix(parts)
    return _servers(topology, parts, is_tls=is_tls)


def _servers(topology: Topology, parts: SplitResult, *, is_tls: bool) -> Address:
    if parts.query or parts.fragment:
        raise _refusal("ends in a query")
    words = [unquote(word) for word in parts.path.split("/") if word]
    port = DEFAULT_SENTINEL_PORT if topology is Topology.SENTINEL else DEFAULT_PORT
    nodes = tuple(_node(text, port) for text in parts.netloc.split(","))
    if topology is Topology.SINGLE and len(nodes) > 1:
        raise InvalidRequest("store_url names several servers, which redis+sentinel or +cluster do")
    if topology is Topology.SENTINEL and not words:
        raise _refusal("names no master")
    master = words.pop(0) if topology is Topology.SENTINEL else ""
    if len(words) > (0 if topology is Topology.CLUSTER else 1):
        raise _refusal(f"has {'/'.join(words)!r} left over")
    return Address(topology, is_tls, nodes, master=master, db=_db(words[0]) if words else 0)


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"store_url {what}, but must be {FORMS}")


def _unix(parts: SplitResult) -> Address:
    query = dict(parse_qsl(parts.query))
    if parts.netloc or not parts.path or parts.fragment or not query.keys() <= {"db"}:
        raise _refusal("is not the path of a socket")
    return Address(Topology.UNIX, path=unquote(parts.path), db=_db(query.get("db", "0")))


def _node(text: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
    port = default_port if found is None or found[2] is None else int(found[2])
    if found is None or not 0 < port < 1 << 16:
        raise _refusal(f"names the server {text!r}")
    return found[1].strip("[]"), port


def _db(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise _refusal(f"has the database {text!r}")
    return int(text)


DEFAULT_PREFIX = "slipstream"
DEFAULT_TIMEOUT_S = 0.1

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a session store. Without a `url` it is in the memory of the process."""

    url: str | None = option(
        None, "Redis to announce itself in, for routers whose replicas are registry:."
    )
    user: str | None = option(None, "User of the store.")
    password: str | None = option(None, "The user's password.", secret=True)
    password_file: Path | None = option(None, "File with the user's password.")
    ca: Path | None = option(None, "Certificate to trust in the store; unset, the system's.")
    cert: Path | None = option(None, "Certificate to show to the store.")
    key: Path | None = option(None, "Its private key.")
    prefix: str = option(DEFAULT_PREFIX, "Beginning of every key in the store.")
    timeout_s: float = option(DEFAULT_TIMEOUT_S, "Longest time for the store to answer.")

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidRequest(
                f"store_prefix is {self.prefix[:80]!r}, but must be 1 to 64 letters, digits, dots,"
                " colons, dashes or underscores"
            )
        if not self.timeout_s > 0:
            raise InvalidRequest(f"store_timeout_s is {self.timeout_s}, but must be above 0")
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest("store_cert and store_key go together only")
        address = self.address()
        given = {"user": self.user, "password": self.secret(), "ca": self.ca, "cert": self.cert}
        for name, value in given.items():
            if address is None and value is not None:
                raise InvalidRequest(f"store_{name} is given, but there is no store_url")
        if address is not None and not address.is_tls and (self.ca or self.cert):
            raise InvalidRequest("store_ca and store_cert need a store_url that begins with rediss")

    def address(self) -> Address | None:
        """Return the servers; None for memory."""
        return None if self.url is None else parse_address(self.url)

    def secret(self) -> str | None:
        """Return the password, from its file if there is one. Raises `InvalidRequest`."""
        file = self.password_file
        if file is None:
            return self.password
        if self.password is not None:
            raise InvalidRequest("the store's password is given twice, in a file and beside it")
        password = read_secret(file).rstrip("\r\n")
        if not password:
            raise InvalidRequest(f"the password file {file} is empty")
        return password
