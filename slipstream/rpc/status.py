"""Errors on the wire: one table, both ways. The caller catches the same exception everywhere.

A status carries the sentence, and the error's name as the reason of a google.rpc.ErrorInfo.
"""

import math
import re
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from slipstream.config import grpc_proxy
from slipstream.core import errors
from slipstream.core.errors import SlipstreamError, printable

DOMAIN = "slipstream"
PUSHBACK = "grpc-retry-pushback-ms"
PUSHBACK_MS = 500
"""Pushback of an error that has no estimate of its own."""
_MAX_DIGITS = 9
"""Milliseconds of a pushback that is read: eleven days."""

# The most special class comes first; a code's own class, for errors without a name, comes last.
_TABLE: tuple[tuple[type[SlipstreamError], grpc.StatusCode], ...] = (
    (errors.UnsupportedCombination, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.RequestTooLarge, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.PromptTooLong, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotBuilt, grpc.StatusCode.UNIMPLEMENTED),
    (errors.SessionNotFound, grpc.StatusCode.NOT_FOUND),
    (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND),
    (errors.SessionExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.RequestExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.SessionTaken, grpc.StatusCode.ABORTED),
    (errors.SessionOutOfSync, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SessionBusy, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SessionClosed, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.ModelMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.HandshakeError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.LimitExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.CapacityError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.ModelError, grpc.StatusCode.INTERNAL),
    (errors.InternalError, grpc.StatusCode.INTERNAL),
)
_BY_NAME = {kind.__name__: kind for kind, _ in _TABLE}
_BY_CODE = {code: kind for kind, code in _TABLE}
_BY_CODE[grpc.StatusCode.OUT_OF_RANGE] = errors.SessionOutOfSync
# gRPC refuses a message by its size with RESOURCE_EXHAUSTED, as a service does that is full.
_TOO_LARGE = re.compile(r"(?:Sent|SERVER: Received) message larger than max \((\d+) vs\. (\d+)\)")
_CUT = re.compile(r"[a-z ]+; last error: [A-Z]+: (\S+): (?:Failed to connect to remote host: )?")
_INTERNAL = grpc.StatusCode.INTERNAL


def code_of(error: SlipstreamError) -> grpc.StatusCode:
    """The status code of an error; INTERNAL for one that was never meant for the wire."""
    return next((code for kind, code in _TABLE if isinstance(error, kind)), _INTERNAL)


def status_of(error: SlipstreamError) -> Any:
    """The status with details, as `context.abort_with_status` takes it."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason_of(error), domain=DOMAIN))
    number: int = code_of(error).value[0]
    return rpc_status.to_status(
        status_pb2.Status(code=number, message=str(error), details=[detail])
    )


def reason_of(error: SlipstreamError) -> str:
    """The error's name as google.rpc wants it: PROMPT_TOO_LONG."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()


def error_from(error: Any) -> SlipstreamError:
    """The error that a status stands for, sync or aio; the same class as on the other side.

    Any server may have sent the status: what can't be read in its trailers counts as not sent.
    """
    code, named = error.code(), _named(error)
    sentence = printable(str(error.details() or "the service gave no reason"))
    if named is None and (sizes := _TOO_LARGE.search(sentence)):
        what = f"the request is a message of {sizes[1]} bytes, but the limit is {sizes[2]}"
        return errors.RequestTooLarge(what)
    if named is None and code is grpc.StatusCode.UNAVAILABLE:
        sentence = _CUT.sub(r"no connection to \1: ", sentence)
        sentence += proxy_hint(sentence)
    kind = named or _BY_CODE.get(code, errors.InternalError)
    if kind is errors.InternalError and code is not _INTERNAL:
        sentence = f"{sentence} ({code.name})"
    if kind is errors.LimitExceeded:
        told = str(_trailer(error, PUSHBACK))
        is_time = told.isdecimal() and len(told) <= _MAX_DIGITS
        return errors.LimitExceeded(sentence, retry_after_s=int(told) / 1000 if is_time else None)
    return kind(sentence)


def proxy_hint(sentence: str | None = None) -> str:
    """Return the variable that gives gRPC a proxy, to be put behind the sentence of an error; empty
    without a proxy, and where the sentence is about another address."""
    found = grpc_proxy()
    if found is None:
        return ""
    name, port = found
    is_named = sentence is None or "HTTP proxy" in sentence or re.search(rf":{port}\b", sentence)
    return f" (gRPC connects through the proxy that {name} names)" if is_named else ""


def pushback_of(error: SlipstreamError) -> tuple[tuple[str, str], ...]:
    """Return when the caller may try again, as a trailer; none where that is no use."""
    if not isinstance(error, errors.CapacityError):
        return ()
    wait_s = error.retry_after_s if isinstance(error, errors.LimitExceeded) else None
    wait_ms = PUSHBACK_MS if wait_s is None else math.ceil(wait_s * 1000)
    return ((PUSHBACK, str(wait_ms)),)


def _trailer(error: Any, name: str) -> Any:
    return next((value for key, value in error.trailing_metadata() or () if key == name), None)


def is_named(error: grpc.RpcError) -> bool:
    """Return whether the other side named the error; otherwise it is gRPC's own."""
    return _named(error) is not None


def _named(error: Any) -> type[SlipstreamError] | None:
    info = error_details_pb2.ErrorInfo()
    try:
        sent = _trailer(error, "grpc-status-details-bin") or b""
        for detail in status_pb2.Status.FromString(sent).details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                name = info.reason.title().replace("_", "")
                return _BY_NAME.get(name)
    except DecodeError:
        return None
    return None
