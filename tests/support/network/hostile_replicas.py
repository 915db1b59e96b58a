"""Servers that answer with raw bytes, streams and statuses of their own choice; each is real."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import common_pb2, draft_pb2

DETAILS = "grpc-status-details-bin"
GARBAGE = b"\xff\xff\xff\xff"
"""Bytes that are no message of any kind."""
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_IS_SERVING = health_pb2.HealthCheckResponse.SERVING
SERVING = health_pb2.HealthCheckResponse(status=_IS_SERVING).SerializeToString()
Reply = Callable[[Any, Any], AsyncIterator[bytes]]
"""A method: its context and its messages in, raw messages out; it may also abort."""


@dataclass(frozen=True)
class Refusal:
    """A status with trailers, whatever they are."""

    trailers: tuple[tuple[str, str | bytes], ...] = ()
    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    sentence: str = "no"

    async def __call__(self, context, messages):
        await context.abort(self.code, self.sentence, trailing_metadata=self.trailers)
        yield b""


def says(*answers: bytes) -> Reply:
    """Answer the messages one after the other, the last answer for ever."""

    async def reply(context, messages):
        at = 0
        async for _ in messages:
            yield answers[min(at, len(answers) - 1)]
            at += 1

    return reply


async def watches(context, messages):
    yield SERVING
    await asyncio.Event().wait()


async def flips(context, messages):
    """Say that it is serving and that it is not, as fast as can be sent."""
    not_serving = health_pb2.HealthCheckResponse(status=_NOT_SERVING).SerializeToString()
    while True:
        yield SERVING
        yield not_serving


def detailed(*details: any_pb2.Any) -> bytes:
    return status_pb2.Status(code=13, message="no", details=details).SerializeToString()


def details_of(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


_INFO = details_of(error_details_pb2.ErrorInfo(reason="\x00" * 99, domain="slipstream"))
REFUSALS = {
    "broken details": Refusal(((DETAILS, GARBAGE),)),
    "empty details": Refusal(((DETAILS, b""),)),
    "huge details": Refusal(((DETAILS, b"\xff" * 6000),)),
    "another detail": Refusal(((DETAILS, detailed(details_of(wrappers_pb2.Int32Value(value=1)))),)),
    "broken detail": Refusal(
        ((DETAILS, detailed(any_pb2.Any(type_url=_INFO.type_url, value=b"\xff"))),)
    ),
    "unknown reason": Refusal(((DETAILS, detailed(_INFO)),)),
    "huge pushback": Refusal(
        (("grpc-retry-pushback-ms", "9" * 5000),), grpc.StatusCode.RESOURCE_EXHAUSTED
    ),
    "control characters": Refusal(sentence="no\nFORGED \x1b[31mline\x00"),
}


def draft_description(**values: Any) -> draft_pb2.DescribeDraftResponse:
    """Return the description of a sound draft, apart from the values."""
    identity = common_pb2.ModelIdentity(protocol_version=PROTOCOL_VERSION, incarnation="one")
    return draft_pb2.DescribeDraftResponse(
        **{"identity": identity, "kind": "vanilla", "dtype": "float32", **values}
    )


class _Methods(grpc.GenericRpcHandler):
    """Any method by its name; all of them as streams of bytes, which unary callers read alike."""

    def __init__(self, replies: Mapping[str, Reply]) -> None:
        self._replies = replies

    def service(self, details):
        reply = self._replies.get(details.method.rpartition("/")[2])
        if reply is None:
            return None

        async def answer(messages, context):
            async for message in reply(context, messages):
                yield message

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def hostile(replies: Mapping[str, Reply], address: str = "127.0.0.1:0"):
    """The address of a server whose methods, by their short names, reply so."""
    server = grpc.aio.server(
        options=[("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 64 << 10)]
    )
    server.add_generic_rpc_handlers((_Methods(replies),))
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def draft_replies(**replies: Reply) -> dict[str, Reply]:
    """Methods of a draft that is fine but for the replies."""
    described = draft_description().SerializeToString()
    return {
        "Watch": watches,
        "DescribeDraft": says(described),
        "GetDraftLoad": says(draft_pb2.GetDraftLoadResponse().SerializeToString()),
        **replies,
    }
