"""Version of the protocol, identities of models, and incarnations of processes."""

import secrets

from slipstream.config import host_in
from slipstream.core.errors import HandshakeError, InvalidRequest
from slipstream.rpc.channel import check_address
from slipstream.rpc.v1 import common_pb2

PROTOCOL_VERSION = 1


def new_incarnation() -> str:
    """A random id for a process; another one after every start."""
    return secrets.token_hex(8)


Expectation = tuple[str, object, object]
"""Name, our value and theirs of what two sides must agree on."""


def identity_expectations(
    ours: common_pb2.ModelIdentity, theirs: common_pb2.ModelIdentity
) -> list[Expectation]:
    """Return what two identities must agree on; fields empty on either side are not compared."""
    names = ("protocol_version", "model_id", "tokenizer_hash", "vocab_size", "incarnation")
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in names]
    return [pair for pair in pairs if pair[1] and pair[2]]


def require_agreement(side: str, expectations: list[Expectation]) -> None:
    """Raise `HandshakeError` with both values where two sides differ; `side` names ours."""
    for name, ours, theirs in expectations:
        if ours != theirs:
            raise HandshakeError(
                f"{side} has {name} {_brief(ours)}, but the caller expects {_brief(theirs)}"
            )


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


_ANY_HOST = ("", "0.0.0.0", "::")


def check_advertised(address: str, advertised: str | None, *, reader: str) -> None:
    """Raises `InvalidRequest` unless a `reader` can dial `advertised`, or else `address`."""
    if advertised is not None:
        check_address(advertised)
        if host_in(advertised) in _ANY_HOST:
            raise InvalidRequest(
                f"advertised_address is {advertised}, which no {reader} can dial: name a host"
            )
    elif host_in(address) in _ANY_HOST:
        raise InvalidRequest(
            f"address is {address}, which no {reader} can dial: set advertised_address, too"
        )
