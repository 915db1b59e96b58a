"""Targets that a draft reads keys and values from: the allowed addresses, and channels to them.

Callers send addresses, and could otherwise make this process dial any host that it can reach.
"""

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote

import grpc.aio

from slipstream.config import are_local
from slipstream.core.errors import InvalidRequest, PermissionDenied
from slipstream.files import Stamp
from slipstream.rpc.channel import ChannelOptions, Dialer

ANYWHERE = ("*:*",)
THIS_MACHINE = ("127.0.0.0/8:*", "[::1]:*", "localhost:*")
_ANY = "*"
_DNS = "dns:///"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]{0,252})")
_SHOWN = 80
"""Characters of an address that errors repeat."""
MAX_IDLE = 4
"""Unused channels that stay open, so that a target's next session need not connect anew."""

_DialledAddress = tuple[str, Stamp]
"""An address, and the certificates that it was dialled with."""
_Pattern = tuple[IPv4Network | IPv6Network | str, int | None]
"""Hosts by a network of addresses, a name, *.NAME or *, and their port; None: any."""


class KvSources:
    """Addresses that may be dialled, by patterns such as 10.0.0.0/8:50061 or *.targets.svc:*."""

    def __init__(self, patterns: Sequence[str] = THIS_MACHINE) -> None:
        """Raises `InvalidRequest` for a pattern that is none."""
        self._shown = ", ".join(patterns)
        self._patterns = [_pattern(text) for text in patterns]

    def check(self, address: str) -> None:
        """Raise `InvalidRequest` unless it is HOST:PORT, `PermissionDenied` unless allowed."""
        host, port = _split(address)
        hosts = [hosts for hosts, only in self._patterns if only in (None, port)]
        if not any(_is_among(host, pattern) for pattern in hosts):
            raise PermissionDenied(
                f"keys and values are read from {self._shown} (kv_sources), not from"
                f" {address[:_SHOWN]}"
            )


def usual_sources(listening: str) -> tuple[str, ...]:
    """Return the patterns of a draft without any: this machine's if only it can reach the draft."""
    return THIS_MACHINE if are_local(listening) else ANYWHERE


def dialled(address: str) -> str:
    """Return the gRPC name of HOST:PORT; no part of it can turn it into that of another scheme."""
    return _DNS + quote(address.removeprefix(_DNS), safe=":")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(_DNS).rpartition(":")
    host = host.lower()
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_host = isinstance(_ip(host[1:-1]), IPv6Address) if is_bracketed else _NAME.fullmatch(host)
    if not (is_host and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise InvalidRequest(
            f"keys and values are read from HOST:PORT, but the address is {address[:_SHOWN]!r}"
        )
    return host.strip("[]"), int(port)


def _is_among(host: str, hosts: IPv4Network | IPv6Network | str) -> bool:
    address = _ip(host)
    if hosts == _ANY or address is None:
        return isinstance(hosts, str) and fnmatchcase(host, hosts)
    return not isinstance(hosts, str) and address in hosts


def _pattern(text: str) -> _Pattern:
    host, _, port = text.lower().rpartition(":")
    if host and (port == _ANY or (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        number = None if port == _ANY else int(port)
        try:
            return ip_network(host.strip("[]")), number
        except ValueError:
            if host == _ANY or _NAME.fullmatch(host.removeprefix("*.")):
                return host, number
    raise InvalidRequest(
        f"kv_sources has {text!r}, but takes HOST:PORT, where HOST may be a network, *.NAME or *,"
        " and PORT *"
    )


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(slots=True)
class _Dialled:
    channel: grpc.aio.Channel
    num_users: int = 0


class Channels:
    """Open channels by address, with the certificates of now. Close them all in the end."""

    def __init__(self, options: ChannelOptions) -> None:
        """Raises `InvalidRequest` for certificates that can't be used."""
        self._dial = Dialer(options)
        self._open: OrderedDict[_DialledAddress, _Dialled] = OrderedDict()
        """The one whose use ended longest ago comes first."""

    @asynccontextmanager
    async def to(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """Keep a channel to HOST:PORT open meanwhile."""
        key = address, self._dial.stamp()
        if key not in self._open:
            self._open[key] = _Dialled(self._dial(dialled(address)))
        used = self._open[key]
        used.num_users += 1
        try:
            yield used.channel
        finally:
            used.num_users -= 1
            self._open.move_to_end(key)
            await self._close_idle(MAX_IDLE)

    async def close(self) -> None:
        """Close channels without users."""
        await self._close_idle(0)

    async def _close_idle(self, most: int) -> None:
        """Close channels without users: too many, and those with outdated certificates."""
        stamp = self._dial.stamp()
        idle = [key for key, one in self._open.items() if not one.num_users]
        current = [key for key in idle if key[1] == stamp]
        kept = current[max(0, len(current) - most) :]
        for channel in [self._open.pop(key).channel for key in idle if key not in kept]:
            await channel.close()
