"""Bodies in, JSON and server-sent events out, and work that ends when its client leaves."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.client import AsyncChunkStream, Chunk, RequestStats
from slipstream.core.errors import SlipstreamError
from slipstream.core.inline import beside, either, ended
from slipstream_gateway.body import SharedRequest
from slipstream_gateway.choices import merged, opened
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.errors import HttpError, http_error
from slipstream_gateway.responses import ApiFormat, Json, counts, metrics, rounds_json, usage

T = TypeVar("T")
Events = AsyncGenerator[bytes, None]
AsEvent = Callable[[SlipstreamError], bytes]

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
"""Comment line, which clients of server-sent events ignore."""
JSON = "application/json"


async def read_body(
    parts: AsyncIterator[bytes], headers: Mapping[str, str], config: HttpConfig
) -> bytes:
    """Return all of a body.

    Raises `HttpError` for one that is no JSON, too large or too slow; `parts` raises
    `ClientDisconnect` when the client leaves before its end.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HttpError(
            f"the content-type must be {JSON}", code="unsupported_media_type", status=415
        )
    if (coding := headers.get("content-encoding", "identity").lower()) not in ("", "identity"):
        message = f"a body with the content-encoding {coding[:40]} can't be read; send it as it is"
        raise HttpError(message, code="unsupported_media_type", status=415)
    limit, timeout_s = config.max_body_bytes, config.body_timeout_s
    length = headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20:
        _check_size(int(length), limit)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in parts:
                body += part
                _check_size(len(body), limit)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} s"
        raise HttpError(message, code="request_timeout", status=408) from None
    return bytes(body)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        message = f"the body is larger than {limit} bytes, which is the limit"
        raise HttpError(message, code="body_too_large", status=413)


def as_json(value: Any) -> bytes:
    """Return one line. No tokenizer decodes to text that has no bytes, but a client may send it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work.

    Raises `ClientDisconnect` when the client leaves first, which ends the work. The client's
    request must have been read.
    """

    async def leaving() -> T:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    return await either(work, leaving())


class EventStream(Response):
    """A response in parts, whole events each, which are closed whatever ends it. `begin` it."""

    media_type = "text/event-stream"

    def __init__(
        self, parts: Events, headers: dict[str, str], *, keep_alive_s: float, refused: AsEvent
    ) -> None:
        """Comments come after `keep_alive_s` without a part, unless it is 0. `refused` returns the
        event of an error that comes in the place of the first part."""
        # Without a body: its length would be sent otherwise.
        self._parts, self._refused = parts, refused
        self._keep_alive_s = keep_alive_s
        self._first = asyncio.ensure_future(anext(parts, None))
        self._writing = asyncio.Lock()
        self._last_s = asyncio.get_running_loop().time()
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})

    async def begin(self, receive: Receive) -> None:
        """Wait for the first part, until a comment is due. Raises what comes in its place, and
        `ClientDisconnect`."""
        limit_s = self._keep_alive_s or None
        try:
            await unless_gone(receive, asyncio.wait({self._first}, timeout=limit_s))
            if self._first.done():
                self._first.result()
        except BaseException:
            await self._close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except ClientDisconnect:
            return
        finally:
            await self._close()

    async def _close(self) -> None:
        self._first.cancel()
        await ended(self._first)
        await self._parts.aclose()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with beside(self._comment(send)):
            try:
                part = await self._first
            except SlipstreamError as error:
                part = self._refused(error)
            while part is not None:
                await self._write(send, part)
                part = await anext(self._parts, None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, part: bytes) -> None:
        async with self._writing:
            self._last_s = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _comment(self, send: Send) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._keep_alive_s
        while pause_s:
            if (left_s := self._last_s + pause_s - loop.time()) <= 0:
                await self._write(send, COMMENT)
            else:
                await asyncio.sleep(left_s)


class ChunkEvents:
    """The events of an answer of one choice or more, `n` to each prompt. With `include_usage` the
    last has the figures, and no text; with running counts all have some."""

    def __init__(
        self, style: ApiFormat, envelope: Callable[[str, str], Json], body: SharedRequest
    ) -> None:
        """`envelope` returns what all events have, by their kind and model."""
        self._style, self._envelope_of = style, envelope
        self._options, self._n = body.stream_options, body.n
        self._num_prompt = self._num_output = 0

    async def of(self, given: Sequence[AsyncChunkStream]) -> Events:
        """Yield the events; an error after the first becomes the last one. Closing them ends the
        requests."""
        streams = await opened(*given)
        model = streams[0].prompt.model
        self._envelope = self._envelope_of(self._style.chunk_object, model)
        choices = [self._style.choice(index, stream.prompt) for index, stream in enumerate(streams)]
        self._num_prompt = sum(stream.prompt.num_prompt_tokens for stream in streams[:: self._n])
        openings = [opening for choice in choices if (opening := choice.opening())]
        stats: dict[int, RequestStats] = {}
        try:
            async with aclosing(merged(streams)) as chunks:
                yield b"".join(map(self._object, openings))
                async for index, chunk in chunks:
                    yield self._events(choices, index, chunk, stats)
            yield DONE
        except SlipstreamError as error:
            yield error_event(error)

    def _events(
        self, choices: Sequence[Any], index: int, chunk: Chunk, stats: dict[int, RequestStats]
    ) -> bytes:
        """Return no event, one or more; with the last of all choices, their figures."""
        choice, found = choices[index], list[Json]()
        if chunk.stats is not None:
            stats[index] = chunk.stats
        self._num_output += len(chunk.token_ids)
        if chunk.text or chunk.logprobs:
            found += choice.chunk(chunk.text, chunk.logprobs)
        if chunk.finish_reason is not None:
            found += choice.ending(chunk.finish_reason)
        events = [self._object(**rounds_json(chunk.rounds))] if chunk.rounds else []
        events += map(self._object, found)
        if len(stats) == len(choices):
            known = [stats[index] for index in sorted(stats)]
            figures = {"metrics": metrics(known)}
            if self._options.include_usage:
                events.append(self._object(usage=usage(known, n=self._n), **figures))
            else:
                events[-1] = self._object(*found[-1:], **figures)
        return b"".join(events)

    def _object(self, *choices: Json, **more: Any) -> bytes:
        """Return an event. With `include_usage` all have the field, and only the last a value, or
        with running counts all."""
        options, running = self._options, counts(self._num_prompt, self._num_output)
        now = {"usage": running if options.continuous_usage_stats else None}
        fields = {**now, **more} if options.include_usage else more
        return _event({**self._envelope, "choices": choices, **fields})


def error_event(error: SlipstreamError) -> bytes:
    return _event(http_error(error).body())


def _event(value: Json) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"
