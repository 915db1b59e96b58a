"""What both remote clients share: how to reach routers, and what their answers mean.

Loads gRPC and protobuf, and nothing that computes.
"""

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc

from slipstream.client.addresses import are_local, has_several, router_target
from slipstream.client.resuming import NO_PATIENCE, Patience, Resuming, Tries
from slipstream.client.surface import Call, late
from slipstream.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    SessionTaken,
    SlipstreamError,
)
from slipstream.core.model_info import ModelInfo
from slipstream.core.prompt import Prompt
from slipstream.rpc.channel import ChannelOptions
from slipstream.rpc.convert_generation import generation_to_pb, prompt_to_pb
from slipstream.rpc.convert_info import model_info_from_pb
from slipstream.rpc.security import ClientTls
from slipstream.rpc.status import error_from, is_named
from slipstream.rpc.v1 import generation_pb2 as pb

MAX_CONTROL_S = 30.0
"""Of calls that generate nothing."""


_LOG = logging.getLogger("slipstream.client")

_CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_UNCLEAR = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_CUT_WORDS = ("RST_STREAM", "Stream removed")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where routers are, how to get there, and how long to try."""

    target: str
    options: ChannelOptions
    patience: Patience
    shows_tokens: bool = True
    """Whether a token may go there: in the clear only where that is meant."""

    def with_token(self, token: str | None) -> "Connection":
        """The same for another caller. Raises `InvalidRequest` for a token in the clear."""
        if token is not None and not self.shows_tokens:
            raise _in_the_clear(self.address)
        return replace(self, options=replace(self.options, token=token))

    @property
    def address(self) -> str:
        """The address as callers write it."""
        return self.target.removeprefix("ipv4:").removeprefix("ipv6:")

    def tries(self, timeout_s: float | None) -> Tries:
        """The tries of one request, from now on."""
        return Tries(timeout_s, self.patience, clock=time.monotonic, draw=random.random)

    def resuming(self, call: Call) -> Resuming:
        """What one stream resumes with, from now on."""
        return Resuming(call, self.tries(call.timeout_s))


def connection(
    address: str, *, token: str | None, tls: ClientTls | bool | None, retries: bool
) -> Connection:
    """Raises `InvalidRequest` for an address that is none, and for a token in the clear."""
    trusted = ClientTls() if tls is True else tls or None
    target = router_target(address)
    shows_tokens = tls is not None or are_local(address)
    if token is not None and not shows_tokens:
        raise _in_the_clear(address)
    if trusted is not None and trusted.name is None and has_several(target):
        raise InvalidRequest(
            f"the routers are {address}, so tls must give the name that their certificates share"
        )
    options = ChannelOptions(tls=trusted, token=token, balances=True)
    return Connection(target, options, Patience() if retries else NO_PATIENCE, shows_tokens)


def error_of(error: grpc.RpcError, timeout_s: float | None) -> SlipstreamError:
    """The error that a status stands for; `timeout_s` is what the whole request may take."""
    known = error_from(error)
    if timeout_s is not None and type(known) is DeadlineExceeded and not is_named(error):
        return late(timeout_s)
    return known


def pause_after(error: grpc.RpcError, tries: Tries, request: str) -> float:
    """Seconds after which to send a request again that failed so. Raises what it stands for else.

    Not for calls that this side cancelled.
    """
    known = error_of(error, tries.timeout_s)
    is_sent_again = _is_cut(error) or (isinstance(known, SessionTaken) and tries.takes_back())
    pause_s = tries.pause_s() if is_sent_again else None
    if pause_s is None:
        raise known from None
    _LOG.info("%s broke off (%s), and is sent again in %.2f s", request, known, pause_s)
    return pause_s


def _in_the_clear(address: str) -> InvalidRequest:
    return InvalidRequest(
        f"the token would travel in the clear to {address}; pass tls, or tls=False to allow it"
    )


def _is_cut(error: grpc.RpcError) -> bool:
    """Whether the way there broke, rather than the request."""
    status: Any = error
    if status.code() in _CUT:
        return True
    # gRPC has no code of its own for a stream that was reset; neither has what others may mean.
    is_unclear = status.code() in _UNCLEAR and not is_named(error)
    return is_unclear and any(word in (status.details() or "") for word in _CUT_WORDS)


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


def tokenize_request(
    prompt: Prompt, *, raw: bool, allow_special_tokens: bool, model: str
) -> pb.TokenizeRequest:
    """A request for token ids."""
    said = prompt_to_pb(prompt, raw=raw, allow_special_tokens=allow_special_tokens)
    return pb.TokenizeRequest(model=model, prompt=said)


def models_from(answer: pb.GetModelInfoResponse) -> tuple[ModelInfo, ...]:
    """The models asked for."""
    with understood():
        return tuple(model_info_from_pb(model) for model in answer.models)


def unfinished() -> InternalError:
    """The error of a stream that ends without saying why the text ends."""
    return InternalError("the router ended the stream without a reason")


def closed_meanwhile() -> Cancelled:
    """The error of a request whose client was closed under it."""
    return Cancelled("the client was closed while the request ran")
