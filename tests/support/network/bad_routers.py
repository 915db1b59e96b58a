"""Routers of which nothing good comes, for tests of the SDK; each is a real server."""

import asyncio
import threading
from contextlib import asynccontextmanager
from inspect import isawaitable

from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)


@asynccontextmanager
async def opened(client):
    """A client of threads or of asyncio, until it is closed."""
    try:
        yield client
    finally:
        await done((getattr(client, "aclose", None) or client.close)())


async def done(call):
    """Return the outcome of a call of any client: a result, or the chunks of a stream."""
    if hasattr(call, "__aiter__"):
        return [chunk async for chunk in call]
    if hasattr(call, "__next__"):
        return list(call)
    return await call if isawaitable(call) else call


def register(servicer):
    return lambda server: add_GenerationServiceServicer_to_server(servicer, server)


class Failing(GenerationServiceServicer):
    """Raises one error, a number of times and maybe after a first chunk; then answers little."""

    def __init__(self, error: Exception, *, times: int = 1000, num_chunks: int = 0) -> None:
        self.error = error
        self._times = times
        self._num_chunks = num_chunks
        self.num_calls = 0

    async def Generate(self, request, context):
        self._fail()
        return pb.GenerateResponse(text="done", finish=pb.FinishInfo(reason=1))

    async def GenerateStream(self, request, context):
        for _ in range(self._num_chunks):
            yield pb.GenerateStreamResponse(text="x", token_ids=[1], prompt=pb.PromptInfo())
        self._fail()
        yield pb.GenerateStreamResponse(text="done", finish=pb.FinishInfo(reason=1))

    async def Tokenize(self, request, context):
        self._fail()
        return pb.TokenizeResponse(token_ids=[1])

    def _fail(self) -> None:
        self.num_calls += 1
        if self.num_calls <= self._times:
            raise self.error


class Breaking(GenerationServiceServicer):
    """Says a, b, c and so on, a token each, and goes on behind what the caller holds.
    Each call breaks after as many tokens as `nums` says for it, and later ones like the last."""

    def __init__(self, error: Exception, nums: list[int], *, num_tokens: int = 20) -> None:
        self._error = error
        self._nums = nums
        self._num_tokens = num_tokens
        self.asked: list[pb.Generation] = []

    async def GenerateStream(self, request, context):
        num = self._nums[min(len(self.asked), len(self._nums) - 1)]
        self.asked.append(request.generation)
        yield pb.GenerateStreamResponse(prompt=pb.PromptInfo(request_id="as first said"))
        held = request.generation.num_received_tokens
        for token in range(held, min(held + num, self._num_tokens)):
            yield pb.GenerateStreamResponse(text=chr(ord("a") + token), token_ids=[token])
        if held + num < self._num_tokens:
            raise self._error
        yield pb.GenerateStreamResponse(finish=pb.FinishInfo(reason=1))


class Scripted(GenerationServiceServicer):
    """Streams the messages it is given, and keeps the metadata of calls."""

    def __init__(self, *messages: pb.GenerateStreamResponse, hangs: bool = False) -> None:
        self._messages = messages
        self._hangs = hangs
        self.metadata: dict[str, str] = {}
        self.cancelled = threading.Event()

    async def GenerateStream(self, request, context):
        self.metadata = dict(context.invocation_metadata())
        try:
            for message in self._messages:
                yield message
            if self._hangs:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            # A call that ends while gRPC still sends a message closes the generator instead.
            self.cancelled.set()
            raise


def first_chunk() -> pb.GenerateStreamResponse:
    """A beginning that has no end."""
    return pb.GenerateStreamResponse(text="x", token_ids=[1], prompt=pb.PromptInfo())
