"""How a store is reached: the values of a service's `store_*` options, checked.

Reads the password's file and nothing else; dials nothing.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import InvalidRequest
from slipstream.options import option
from slipstream.state.address import Address, parse_address

DEFAULT_PREFIX = "slipstream"
DEFAULT_TIMEOUT_S = 0.1

_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is reached. Without a `url` it is in the memory of the process."""

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
        try:
            password = file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InvalidRequest(f"store_password_file {file} can't be read ({why})") from None
        if not password:
            raise InvalidRequest(f"store_password_file {file} is empty")
        return password
