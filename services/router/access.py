"""Who may use the public API: whoever shows a token that is in the file."""

import hmac
from collections.abc import Sequence
from pathlib import Path

from slipstream.core.errors import InvalidRequest, Unauthenticated
from slipstream.rpc.certificates import read

_PREFIX = "Bearer "


class Access:
    """Bearer tokens. Without a file, everybody may."""

    def __init__(self, tokens: Sequence[str] | None) -> None:
        self._tokens = None if tokens is None else tuple(token.encode() for token in tokens)

    @classmethod
    def load(cls, path: Path | None) -> "Access":
        """Tokens from a file, one per line. Raises `InvalidRequest` for a file without any."""
        if path is None:
            return cls(None)
        try:
            lines = [line.strip() for line in read(path).decode().splitlines()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"{path} is not UTF-8 text") from None
        tokens = [line for line in lines if line]
        if not tokens:
            raise InvalidRequest(f"{path} has no token in it, so nobody could be let in")
        return cls(tokens)

    def check(self, metadata: Sequence[tuple[str, str | bytes]] | None) -> None:
        """Raises `Unauthenticated` unless a known token is shown.

        Takes as long for every wrong token, so that none can be guessed bit by bit.
        """
        if self._tokens is None:
            return
        shown = [value for key, value in metadata or () if key.lower() == "authorization"]
        if len(shown) != 1 or not str(shown[0]).startswith(_PREFIX):
            raise Unauthenticated("the call shows no bearer token")
        token = str(shown[0]).removeprefix(_PREFIX).encode()
        matches = [hmac.compare_digest(token, known) for known in self._tokens]
        if not any(matches):
            raise Unauthenticated("the bearer token is not known here")
