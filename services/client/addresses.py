"""Where routers are, as callers write it: one HOST:PORT, several, or a name of gRPC's."""

import ipaddress

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.channel import check_address


def router_target(address: str) -> str:
    """What gRPC is to dial. Raises `InvalidRequest`.

    Several addresses, with commas between, are IP addresses of one kind: names that stand for
    several hosts are the DNS's part.
    """
    if "," not in address or "://" in address or address.startswith(("unix:", "ipv4:", "ipv6:")):
        return check_address(address)
    parts = [check_address(part.strip()) for part in address.split(",")]
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        raise InvalidRequest(
            f"the addresses are {address!r}, but several must be all IPv4 or all IPv6"
        )
    return f"{kinds.pop()}:{','.join(parts)}"


def has_several(target: str) -> bool:
    """Whether a target lists more than one address."""
    return target.startswith(("ipv4:", "ipv6:")) and "," in target


def are_local(address: str) -> bool:
    """Whether all addresses are this machine's."""
    return all(_is_local(part.strip()) for part in address.split(","))


def _kind(part: str) -> str:
    host = _host(part)
    try:
        return f"ipv{ipaddress.ip_address(host).version}"
    except ValueError:
        raise InvalidRequest(
            f"one of several addresses is {part!r}, but must be IP:PORT; a name that stands for"
            " several routers is written dns:///NAME:PORT"
        ) from None


def _is_local(part: str) -> bool:
    if part.startswith("unix:"):
        return True
    host = _host(part)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(part: str) -> str:
    host = part.rpartition(":")[0].rpartition("/")[2]
    return host.removeprefix("ipv4:").removeprefix("ipv6:").strip("[]")
