"""Calls with one answer to a replica, which may answer with anything."""

from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from slipstream.rpc.exchange import MAX_ANSWER_BYTES, parsed

M = TypeVar("M", bound=Message)


async def call_unary(
    channel: grpc.aio.Channel,
    method: str,
    request: Message,
    kind: type[M],
    *,
    timeout_s: float | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> M:
    """Return the answer. Raises `grpc.aio.AioRpcError`, and `InternalError` for other bytes.

    The answer is parsed here: gRPC gives None for bytes that are no message, and logs a traceback.
    """
    call: Any = channel.unary_unary(method)
    answer: bytes = await call(request.SerializeToString(), timeout=timeout_s)
    return parsed(kind, answer, "it", max_bytes=max_bytes)
