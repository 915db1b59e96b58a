"""What both remote clients share: how to reach a router, and what its answers mean.

Loads gRPC and protobuf, and nothing that computes.
"""

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from slipstream.client.surface import Call, late
from slipstream.core.errors import DeadlineExceeded, InternalError, InvalidRequest
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.rpc.channel import ChannelOptions, check_address
from slipstream.rpc.convert_generation import generation_to_pb, prompt_to_pb
from slipstream.rpc.convert_info import model_info_from_pb
from slipstream.rpc.security import ClientTls
from slipstream.rpc.status import error_from, is_named
from slipstream.rpc.v1 import generation_pb2 as pb

MAX_CONTROL_S = 30.0
"""Of calls that generate nothing."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A router's address, and how to get there."""

    address: str
    options: ChannelOptions


def connection(
    address: str, *, token: str | None, tls: ClientTls | bool | None, retries: bool
) -> Connection:
    """Raises `InvalidRequest` for an address that is none, and for a token in the clear."""
    check_address(address)
    if token is not None and tls is None and not _is_loopback(address):
        raise InvalidRequest(
            f"the token would travel in the clear to {address}; pass tls, or tls=False to allow it"
        )
    trusted = ClientTls() if tls is True else tls or None
    options = ChannelOptions(tls=trusted, token=token, retries=retries, balances=True)
    return Connection(address, options)


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].rpartition("/")[2].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def translated(timeout_s: float | None) -> Iterator[None]:
    """Statuses become the errors that they stand for."""
    try:
        yield
    except grpc.RpcError as error:
        known = error_from(error)
        if timeout_s is not None and type(known) is DeadlineExceeded and not is_named(error):
            known = late(timeout_s)
        raise known from None


@contextmanager
def understood() -> Iterator[None]:
    """An answer that is none is the router's fault, not the caller's."""
    try:
        yield
    except InvalidRequest as error:
        raise InternalError(f"the router's answer can't be read: {error}") from None


def unary_request(call: Call) -> pb.GenerateRequest:
    """A request for text at once."""
    return pb.GenerateRequest(generation=generation_to_pb(call.generation))


def stream_request(call: Call) -> pb.GenerateStreamRequest:
    """A request for text as it becomes final."""
    return pb.GenerateStreamRequest(generation=generation_to_pb(call.generation))


def tokenize_request(prompt: Prompt, *, raw: bool, model: str) -> pb.TokenizeRequest:
    """A request for token ids."""
    return pb.TokenizeRequest(model=model, prompt=prompt_to_pb(prompt, raw=raw))


def models_from(answer: pb.GetModelInfoResponse) -> tuple[ModelInfo, ...]:
    """The models asked for."""
    with understood():
        return tuple(model_info_from_pb(model) for model in answer.models)


def unfinished() -> InternalError:
    """Of a stream that ends without saying why the text ends."""
    return InternalError("the router ended the stream without a reason")
