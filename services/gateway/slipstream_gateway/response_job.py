"""Runs of /v1/responses: what is asked of the router, and the answer's events."""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from slipstream.client import (
    AsyncClient,
    AsyncClientSession,
    PromptInfo,
    RequestOptions,
    Result,
)
from slipstream.core.errors import SlipstreamError
from slipstream.core.request.tools import call_schema, forced_tools, tools_of
from slipstream_gateway.choices import OpenStream, opened
from slipstream_gateway.errors import http_error
from slipstream_gateway.http_io import as_json, with_errors
from slipstream_gateway.response_answer import ResponseAnswer
from slipstream_gateway.responses import Json
from slipstream_gateway.responses_body import ResponsesRequest
from slipstream_gateway.sdk_options import chat_options, tool_use


class ResponseJob:
    """A request for a response. A stored one is a turn of a session, which its id names."""

    def __init__(
        self, body: ResponsesRequest, request_id: str, token: str, *, default_max_tokens: int
    ) -> None:
        """Raises `HttpError`, or `InvalidRequest`."""
        self._body, self._request_id = body, request_id
        self._earlier = body.earlier()
        chat = body.chat()
        (self._prompt,) = chat.prompts
        self.options = chat_options(
            chat, request_id=request_id, default_max_tokens=default_max_tokens
        )
        self._use = tool_use(self.options, is_single=not body.parallel_tool_calls)
        if self._earlier is not None:
            self.options["after"] = self._earlier.request_id
            _keep_tools(self.options)
        named = hashlib.sha256(f"{token}/{request_id}".encode()).hexdigest()[:32]
        self._session_id = named if self._earlier is None else self._earlier.session_id

    async def result(self, client: AsyncClient) -> Result:
        """Return the whole answer."""
        return await self._place(client).generate(self._prompt, **self.options)

    async def events(
        self, client: AsyncClient, wall_s: Callable[[], float]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of the answer. An error of a response that has begun is the last one, as
        the status was sent."""
        (stream,) = await opened(self._place(client).stream(self._prompt, **self.options))
        answer = self.answer(stream.prompt, int(wall_s()))

        def failed(error: SlipstreamError) -> bytes:
            return _bytes([answer.failed(http_error(error).body()["error"])])

        async with aclosing(with_errors(_events(answer, stream), failed)) as events:
            async for event in events:
                yield event

    def _place(self, client: AsyncClient) -> AsyncClient | AsyncClientSession:
        if not self._body.store:
            return client
        return client.session(self._session_id, is_new=self._earlier is None)

    def answer(self, prompt: PromptInfo, created: int) -> ResponseAnswer:
        """Return the answer, empty as yet."""
        body = self._body
        name = f"{self._session_id}_{body.setting}_{self._request_id}"
        whole: Json = {
            "id": f"resp_{name}" if body.store else f"resp_{self._request_id}",
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "max_output_tokens": self.options["max_tokens"],
            "truncation": "disabled",
            "metadata": {},
            "usage": None,
            **body.model_dump(include=_SHOWN, by_alias=True, exclude_unset=False),
        }
        return ResponseAnswer(whole, prompt, self._use)


_SHOWN = {
    *("instructions", "parallel_tool_calls", "previous_response_id", "store", "temperature"),
    *("text", "tool_choice", "tools", "top_p"),
}
"""Parameters that a response repeats."""


def _keep_tools(options: RequestOptions) -> None:
    """Leave out the tools, which the session's prompt has already; a forced call stays forced."""
    tools = tools_of(options.pop("tools", ()))
    if forced := forced_tools(tools, options.pop("tool_choice", "auto")):
        options["json_schema"] = call_schema(forced)


def refused_event(error: SlipstreamError) -> bytes:
    """Return the event of an error that comes before there is a response."""
    about = http_error(error).body()["error"]
    shown = {name: about[name] for name in ("code", "message", "param")}
    return _bytes([{"type": "error", "sequence_number": 0, **shown}])


async def _events(answer: ResponseAnswer, stream: OpenStream) -> AsyncGenerator[bytes, None]:
    yield _bytes(answer.opening())
    async with aclosing(stream.chunks()) as chunks:
        async for chunk in chunks:
            events = answer.push(chunk.text, chunk.logprobs)
            if chunk.finish_reason is not None and chunk.stats is not None:
                events += answer.end(chunk.finish_reason, chunk.stats)
            yield _bytes(events)


def _bytes(events: list[Json]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + as_json(event) + b"\n\n"
        for event in events
    )
