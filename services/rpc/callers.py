"""Who may call a service, by the names that a caller's certificate carries.

Knows nothing of how certificates are checked: that has been done when names are read here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slipstream.core.errors import InvalidRequest, PermissionDenied

# Where gRPC tells the alternative names and the common name of a subject.
_NAMED_IN = ("peer_dns", "x509_common_name")


class Caller(Protocol):
    """What is known of a call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What gRPC knows of whoever made it."""
        ...


@dataclass(frozen=True, slots=True)
class Callers:
    """Lets those in whose certificate carries one of `names`; everybody where there are none."""

    names: tuple[str, ...] = ()
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the last part of a method's name: who else may call that one."""

    def check(self, method: str, caller: Caller) -> None:
        """Raises `PermissionDenied`. The method is /PACKAGE.SERVICE/NAME."""
        if not self.names:
            return
        wanted = (*self.names, *self.more.get(method.rpartition("/")[2], ()))
        shown = caller.auth_context()
        theirs = [
            name.decode("utf-8", "replace") for part in _NAMED_IN for name in shown.get(part, ())
        ]
        if set(wanted).isdisjoint(theirs):
            who = ", ".join(dict.fromkeys(theirs)) or "nobody"
            allowed = " or ".join(wanted)
            raise PermissionDenied(
                f"{method} is for certificates of {allowed}, but the caller's is of {who}"
            )


def named_callers(
    tls_client_ca: Path | None, tls_client_names: tuple[str, ...], **more: tuple[str, ...]
) -> Callers:
    """What a service's options of these names mean. Raises `InvalidRequest`."""
    if tls_client_names and tls_client_ca is None:
        raise InvalidRequest("tls_client_names needs tls_client_ca")
    if any(more.values()) and not tls_client_names:
        raise InvalidRequest("names for one method need tls_client_names for the others")
    return Callers(tls_client_names, more)
