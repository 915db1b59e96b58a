"""A stream as server-sent events: an answer's parts as they become final, then its figures.

Knows the parts and their order; not how they reach anybody.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from slipstream.client import AsyncChunkStream, Chunk, FinishReason, RequestStats
from slipstream.core.errors import SlipstreamError
from slipstream.gateway.answers import Envelope, Json, Said, Style, metrics, usage
from slipstream.gateway.errors import problem_of

DONE = b"data: [DONE]\n\n"


def as_json(value: Any) -> bytes:
    """One line. Text that has no bytes can't come out of a tokenizer, but out of a caller."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def event(value: Json) -> bytes:
    """One event."""
    return b"data: " + as_json(value) + b"\n\n"


class Events:
    """One answer's stream. With `include_usage` its last part has the figures, and no text."""

    def __init__(self, style: Style, envelope: Envelope, *, include_usage: bool) -> None:
        self._style = style
        self._envelope = envelope
        self._include_usage = include_usage
        self._offset = 0

    async def of(self, stream: AsyncChunkStream, first: Chunk) -> AsyncGenerator[bytes, None]:
        """The events; `first` was read already. An error is the last of them: the status is said.

        Closing it ends the request.
        """
        async with aclosing(stream):
            if (opening := self._style.opening()) is not None:
                yield self._event(opening)
            yield self._parts(first)
            try:
                async for chunk in stream:
                    yield self._parts(chunk)
            except SlipstreamError as error:
                yield event(problem_of(error).body())
                return
            yield DONE

    def _parts(self, chunk: Chunk) -> bytes:
        """No event, one or more: what is new in a chunk."""
        parts = b""
        if chunk.text or chunk.logprobs:
            said = Said(chunk.text, chunk.logprobs, self._offset)
            parts += self._event(self._style.piece(said))
            self._offset += len(chunk.text)
        if chunk.finish_reason is not None and chunk.stats is not None:
            parts += self._last(chunk.finish_reason, chunk.stats)
        return parts

    def _last(self, reason: FinishReason, stats: RequestStats) -> bytes:
        ending, told = self._style.ending(reason), {"metrics": metrics(stats)}
        if not self._include_usage:
            return self._event(ending, **told)
        return self._event(ending) + self._event(usage=usage(stats), **told)

    def _event(self, *choices: Json, **more: Any) -> bytes:
        """With `include_usage` every part says something of it, if only that it comes later."""
        said = {"usage": None, **more} if self._include_usage else more
        return event(self._envelope.around(self._style.piece_object, *choices, **said))
