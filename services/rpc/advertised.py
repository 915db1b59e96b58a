"""The address at which a service says that it is reached, which others must be able to dial."""

from slipstream.core.errors import InvalidRequest
from slipstream.rpc.channel import check_address

_ANY_HOST = ("", "0.0.0.0", "[::]")


def check_advertised(address: str, advertised: str | None, *, reader: str) -> None:
    """Raises `InvalidRequest` unless a `reader` can dial `advertised`, or else `address`."""
    if advertised is not None:
        check_address(advertised)
        if _host(advertised) in _ANY_HOST:
            raise InvalidRequest(
                f"advertised_address is {advertised}, which no {reader} can dial: name a host"
            )
    elif _host(address) in _ANY_HOST:
        raise InvalidRequest(
            f"address is {address}, which no {reader} can dial: set advertised_address, too"
        )


def _host(address: str) -> str:
    return address.rpartition(":")[0]
