"""Small real servers of the public API for tests of the SDK: one that works, some that fail."""

import asyncio
import threading

from slipstream.client.embedded_aio import AsyncEmbedded
from slipstream.client.surface import Call
from slipstream.core.results import collected
from slipstream.core.server_info import ServerInfo
from slipstream.rpc.convert_generation import generation_from_pb, prompt_from_pb
from slipstream.rpc.convert_info import model_info_to_pb, server_info_to_pb
from slipstream.rpc.convert_results import chunk_to_pb, result_to_pb
from slipstream.rpc.protocol import PROTOCOL_VERSION
from slipstream.rpc.v1 import generation_pb2 as pb
from slipstream.rpc.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)


def register(servicer):
    """What `background.served` takes."""
    return lambda server: add_GenerationServiceServicer_to_server(servicer, server)


class RouterDouble(GenerationServiceServicer):
    """Embedded engines behind the public API."""

    def __init__(self, engines: AsyncEmbedded) -> None:
        self._engines = engines
        self.ended = threading.Semaphore(0)
        """Released whenever a stream's engines are free again."""

    async def Generate(self, request, context):
        turn = self._engines.turn(Call(generation_from_pb(request.generation), None))
        chunks = []
        while (chunk := await turn.read()) is not None:
            chunks.append(chunk)
        return result_to_pb(collected(chunks))

    async def GenerateStream(self, request, context):
        turn = self._engines.turn(Call(generation_from_pb(request.generation), None))
        try:
            while (chunk := await turn.read()) is not None:
                yield chunk_to_pb(chunk)
        finally:
            await turn.aclose()
            self.ended.release()

    async def Tokenize(self, request, context):
        prompt, raw = prompt_from_pb(request.prompt)
        ids = await self._engines.tokenize(prompt, raw=raw, model=request.model)
        return pb.TokenizeResponse(token_ids=ids)

    async def GetModelInfo(self, request, context):
        models = await self._engines.models(request.model)
        return pb.GetModelInfoResponse(models=[model_info_to_pb(model) for model in models])

    async def GetServerInfo(self, request, context):
        return server_info_to_pb(ServerInfo("0", PROTOCOL_VERSION, 0.0, 0, 0, False))

    async def DeleteSession(self, request, context):
        await self._engines.end_session(request.session_id)
        return pb.DeleteSessionResponse()


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
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def first_chunk() -> pb.GenerateStreamResponse:
    """A beginning that has no end."""
    return pb.GenerateStreamResponse(text="x", token_ids=[1], prompt=pb.PromptInfo())
