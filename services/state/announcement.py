"""What a live replica says of itself to all routers: values and their text. Knows no store."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from slipstream.core.errors import InvalidRequest
from slipstream.core.server_info import ReplicaRole

MAX_TEXT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Announcement:
    """One replica, and what it holds at the moment."""

    role: ReplicaRole
    address: str
    """Where routers reach it."""
    incarnation: str
    """Its process."""
    model: str = ""
    """Model of a target; of a draft the one that it is for, empty for any."""
    kind: str = ""
    """Kind of drafter; empty for a target."""
    version: str = ""
    """Of the package."""
    num_sessions: int = 0
    num_waiting: int = 0
    kv_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("address", "incarnation"):
            value = getattr(self, name)
            if not value or not value.isascii() or not value.isprintable() or " " in value:
                raise InvalidRequest(f"a replica's {name} is {value[:80]!r}, but must be one word")
        host, _, port = self.address.rpartition(":")
        if not (host and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidRequest(f"a replica's address is {self.address[:80]!r}, not HOST:PORT")
        for name in ("num_sessions", "num_waiting", "kv_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, but must be 0 or more")

    def text(self) -> str:
        """As stores keep it."""
        return json.dumps(asdict(self), separators=(",", ":"))


def announcement_from(text: str) -> Announcement:
    """The replica of a text, fields of later versions left out. Raises `InvalidRequest`."""
    try:
        values = json.loads(text) if len(text) <= MAX_TEXT_BYTES else None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{text[:80]!r} is no announcement")
    known: dict[str, Any] = {
        at.name: values[at.name] for at in fields(Announcement) if at.name in values
    }
    for name, value in known.items():
        kind = int if name.startswith(("num_", "kv_")) else str
        if type(value) is not kind:
            raise InvalidRequest(f"an announcement's {name} is {str(value)[:80]!r}")
    try:
        return Announcement(**known | {"role": ReplicaRole(known.get("role", ""))})
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"an announcement that can't be used: {error}") from None
