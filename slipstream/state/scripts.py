"""Scripts of Redis, from the files in `lua`. Those of sessions have `MemoryStore` for their model.

Servers from Redis 6.2 on run these: each script is atomic, and its effects are logged as one.
"""

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script of Redis, known to servers by its digest."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)

    @classmethod
    def of(cls, *names: str) -> "Script":
        """Return the script in the files of these names, one behind the other."""
        folder = files("slipstream.state") / "lua"
        return cls("\n".join((folder / f"{name}.lua").read_text() for name in names))


ACQUIRE = Script.of("session", "acquire")
APPEND = Script.of("session", "held", "append")
RENEW = Script.of("session", "held", "renew")
RELEASE = Script.of("session", "held", "release")
DELETE = Script.of("session", "delete")
