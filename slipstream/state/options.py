"""The `store_*` options of a service, checked, and the endpoint that its URL names."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from slipstream.core.errors import InvalidRequest, check
from slipstream.files import read_secret
from slipstream.options import option

DEFAULT_PORT = 6379
FORMS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH?db=DB"


@dataclass(frozen=True, slots=True)
class Address:
    """One endpoint of Redis: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = DEFAULT_PORT
    path: str = ""
    is_tls: bool = False
    db: int = 0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Return the endpoint that a URL names. Raises `InvalidRequest`, also for a password inside.

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
    if parts.scheme == "unix":
        return _unix(parts)
    if parts.scheme not in ("redis", "rediss"):
        raise _refusal(f"begins with {parts.scheme!r}")
    return _server(parts)


def _server(parts: SplitResult) -> Address:
    if parts.query or parts.fragment:
        raise _refusal("ends in a query")
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:,\[\]\s]+)(?::([0-9]{1,5}))?", parts.netloc)
    port = DEFAULT_PORT if found is None or found[2] is None else int(found[2])
    if found is None or not 0 < port < 1 << 16:
        raise _refusal(f"names the server {parts.netloc!r}")
    db = _db(unquote(parts.path).strip("/") or "0")
    return Address(found[1].strip("[]"), port, is_tls=parts.scheme == "rediss", db=db)


def _unix(parts: SplitResult) -> Address:
    query = dict(parse_qsl(parts.query))
    if parts.netloc or not parts.path or parts.fragment or not query.keys() <= {"db"}:
        raise _refusal("is not the path of a socket")
    return Address(path=unquote(parts.path), db=_db(query.get("db", "0")))


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"store_url {what}, but must be {FORMS}")


def _db(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise _refusal(f"has the database {text!r}")
    return int(text)


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
    prefix: str = option("slipstream", "Beginning of every key in the store.")
    timeout_s: float = option(0.1, "Longest time for the store to answer.")

    def __post_init__(self) -> None:
        limit = "1 to 64 letters, digits, dots, colons, dashes or underscores"
        is_right = _PREFIX.fullmatch(self.prefix) is not None
        check(is_right, "store_prefix", self.prefix[:80], limit)
        check(self.timeout_s > 0, "store_timeout_s", self.timeout_s, "above 0")
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
        """Return the endpoint; None for memory."""
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
