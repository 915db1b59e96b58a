"""The `store_*` options of a service, checked, and the endpoint that its URL names."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from slipstream.core.errors import InvalidRequest, check
from slipstream.files import read_secret
from slipstream.options import option

DEFAULT_PORT = 6379
FORMS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH?db=DB"
_SERVER = re.compile(
    r"(rediss?)://(\[[0-9A-Fa-f:.]+\]|[^:,\[\]\s/?#]+)(?::([0-9]{1,5}))?(?:/+([0-9]{1,4}))?/*"
)
_SOCKET = re.compile(r"unix://(/[^?#]+)(?:\?db=([0-9]{1,4}))?")


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
    found = _SERVER.fullmatch(url)
    if found is not None and 0 < int(found[3] or DEFAULT_PORT) < 1 << 16:
        host, port, db = found[2].strip("[]"), int(found[3] or DEFAULT_PORT), int(found[4] or 0)
        return Address(host, port, is_tls=found[1] == "rediss", db=db)
    if (found := _SOCKET.fullmatch(url)) is not None:
        return Address(path=unquote(found[1]), db=int(found[2] or 0))
    raise InvalidRequest(f"store_url is of another form, but must be {FORMS}")


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
