"""How a store is reached: the values of a service's `store_*` options, checked.

Reads the password's file and nothing else; dials nothing.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slipstream.core.errors import InvalidRequest
from slipstream.state.address import Address, parse_address

DEFAULT_PREFIX = "slipstream"
DEFAULT_TIMEOUT_S = 0.1

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where sessions are kept. Without a `url`: in the memory of the process."""

    url: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    """Whom to trust; None for the system's roots."""
    cert: Path | None = None
    key: Path | None = None
    prefix: str = DEFAULT_PREFIX
    """What every key begins with."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Longest time for an operation, all of it."""

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
        for name in ("user", "password", "ca", "cert"):
            if address is None and getattr(self, name) is not None:
                raise InvalidRequest(f"store_{name} is given, but there is no store_url")
        if address is not None and not address.is_tls and (self.ca or self.cert):
            raise InvalidRequest("store_ca and store_cert need a store_url that begins with rediss")

    def address(self) -> Address | None:
        """The servers; None for memory."""
        return None if self.url is None else parse_address(self.url)


class StoreFields(Protocol):
    """The options of a service that say where sessions are kept."""

    @property
    def store_url(self) -> str | None: ...
    @property
    def store_user(self) -> str | None: ...
    @property
    def store_password(self) -> str | None: ...
    @property
    def store_password_file(self) -> Path | None: ...
    @property
    def store_ca(self) -> Path | None: ...
    @property
    def store_cert(self) -> Path | None: ...
    @property
    def store_key(self) -> Path | None: ...
    @property
    def store_prefix(self) -> str: ...
    @property
    def store_timeout_s(self) -> float: ...


def store_options(fields: StoreFields) -> StoreOptions:
    """A service's options of its store. Raises `InvalidRequest`."""
    return StoreOptions(
        url=fields.store_url,
        user=fields.store_user,
        password=_password(fields.store_password, fields.store_password_file),
        ca=fields.store_ca,
        cert=fields.store_cert,
        key=fields.store_key,
        prefix=fields.store_prefix,
        timeout_s=fields.store_timeout_s,
    )


def _password(given: str | None, file: Path | None) -> str | None:
    if file is None:
        return given
    if given is not None:
        raise InvalidRequest("the store's password is given twice, in a file and beside it")
    try:
        password = file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"store_password_file {file} can't be read ({why})") from None
    if not password:
        raise InvalidRequest(f"store_password_file {file} is empty")
    return password
