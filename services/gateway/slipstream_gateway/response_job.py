"""Runs of /v1/responses, and their answers: items of text and calls, as events and whole."""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from slipstream.client import (
    AsyncClient,
    AsyncClientSession,
    FinishReason,
    PromptInfo,
    RequestOptions,
    RequestStats,
    Result,
)
from slipstream.core.errors import SlipstreamError
from slipstream.core.logprobs import Logprobs
from slipstream.core.request.tool_calls import CallPiece, Piece, call_id
from slipstream.core.request.tools import call_schema, forced_tools, tools_of
from slipstream_gateway.chat import ToolUse, parser_of
from slipstream_gateway.choices import OpenStream, opened
from slipstream_gateway.errors import http_error
from slipstream_gateway.http_io import as_json, with_errors
from slipstream_gateway.responses import Json, chat_logprobs, metrics
from slipstream_gateway.responses_body import ResponsesRequest
from slipstream_gateway.sdk_options import chat_options, tool_use

_SHOWN = {
    *("instructions", "parallel_tool_calls", "previous_response_id", "store", "temperature"),
    *("text", "tool_choice", "tools", "top_p"),
}


class ResponseAnswer:
    """One answer. `opening`, `push` and `end` return events, each numbered; `whole` is all."""

    def __init__(self, whole: Json, prompt: PromptInfo, use: ToolUse | None) -> None:
        """`whole` is the response as it is before any output."""
        self.whole = {**whole, "model": prompt.model, "output": []}
        self._request_id = prompt.request_id
        self._is_single = use is not None and use.is_single
        self._parser = None if use is None else parser_of(use, prompt)
        self._item: Json | None = None
        """The item that is being written, but for its text or arguments."""
        self._parts: list[str] = []
        """Text or arguments of that item so far."""
        self._num_events = 0

    def opening(self) -> list[Json]:
        """Return the first events."""
        return [
            self._event("response.created", response=dict(self.whole)),
            self._event("response.in_progress", response=dict(self.whole)),
        ]

    def push(self, text: str, of_tokens: Logprobs) -> list[Json]:
        """Return the events of a part of the text."""
        pieces: list[Piece] = [text] if self._parser is None else self._parser.push(text)
        return self._written(pieces, chat_logprobs(of_tokens))

    def end(self, reason: FinishReason, stats: RequestStats) -> list[Json]:
        """Return the last events; then the response is whole."""
        events = [] if self._parser is None else self._written(self._parser.end(), None)
        is_whole = reason is FinishReason.STOP
        events += self._close("completed" if is_whole else "incomplete")
        status = "completed" if is_whole else "incomplete"
        details = None if is_whole else {"reason": "max_output_tokens"}
        self.whole |= {
            "status": status,
            "incomplete_details": details,
            "usage": _usage(stats),
            "metrics": metrics([stats]),
        }
        return [*events, self._event(f"response.{status}", response=dict(self.whole))]

    def failed(self, error: Json) -> Json:
        """Return the last event of an answer that broke off."""
        self._settle()
        cause = {"code": error["code"] or "server_error", "message": error["message"]}
        return self._event(
            "response.failed", response={**self.whole, "status": "failed", "error": cause}
        )

    def _written(self, pieces: list[Piece], logprobs: Json | None) -> list[Json]:
        events: list[Json] = []
        for piece in pieces:
            if isinstance(piece, str):
                events += self._text(piece, logprobs)
                logprobs = None
            elif piece.index == 0 or not self._is_single:
                events += self._call(piece)
        return events

    def _text(self, text: str, logprobs: Json | None) -> list[Json]:
        events: list[Json] = []
        if self._item is None or self._item["type"] != "message":
            events += self._open_message()
        assert self._item is not None
        part = self._item["content"][0]
        entries = [] if logprobs is None else logprobs["content"]
        self._parts.append(text)
        part["logprobs"] += entries
        delta = self._event(
            "response.output_text.delta", **self._place(), delta=text, logprobs=entries
        )
        return [*events, delta] if text or entries else events

    def _open_message(self) -> list[Json]:
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        name = f"msg_{self._request_id}_{len(self.whole['output'])}"
        item: Json = {"type": "message", "id": name, "role": "assistant", "content": []}
        events = [*self._close("completed"), *self._open(item)]
        added = self._event("response.content_part.added", **self._place(), part=dict(part))
        item["content"] = [part]
        return [*events, added]

    def _call(self, piece: CallPiece) -> list[Json]:
        events: list[Json] = []
        if piece.name is not None:
            item = {
                "type": "function_call",
                "id": f"fc_{self._request_id}_{len(self.whole['output'])}",
                "call_id": call_id(self._request_id, piece.index),
                "name": piece.name,
                "arguments": "",
            }
            events += [*self._close("completed"), *self._open(item)]
        assert self._item is not None
        self._parts.append(piece.arguments)
        if piece.arguments:
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **self._place(), delta=piece.arguments))
        return events

    def _open(self, item: Json) -> list[Json]:
        item["status"] = "in_progress"
        self._item, self._parts = item, []
        self.whole["output"] = [*self.whole["output"], item]
        index = len(self.whole["output"]) - 1
        return [self._event("response.output_item.added", output_index=index, item=dict(item))]

    def _close(self, status: str) -> list[Json]:
        """Return the events that end the item that is being written, if any."""
        item = self._item
        if item is None:
            return []
        self._settle()
        place = self._place()
        events: list[Json] = []
        if item["type"] == "message":
            part = item["content"][0]
            whole = {"text": part["text"], "logprobs": part["logprobs"]}
            events.append(self._event("response.output_text.done", **place, **whole))
            events.append(self._event("response.content_part.done", **place, part=part))
        else:
            whole = {"name": item["name"], "arguments": item["arguments"]}
            kind = "response.function_call_arguments.done"
            events.append(self._event(kind, **place, **whole))
        item["status"] = status
        index = place["output_index"]
        events.append(self._event("response.output_item.done", output_index=index, item=item))
        self._item = None
        return events

    def _settle(self) -> None:
        """Put what was written into the item, if there is one."""
        if self._item is not None:
            is_text = self._item["type"] == "message"
            holder, name = (
                (self._item["content"][0], "text") if is_text else (self._item, "arguments")
            )
            holder[name] = "".join(self._parts)

    def _place(self) -> Json:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self.whole["output"]) - 1}
        return {**place, "content_index": 0} if self._item["type"] == "message" else place

    def _event(self, kind: str, **fields: Any) -> Json:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}


def _usage(stats: RequestStats) -> Json:
    return {
        "input_tokens": stats.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        "output_tokens": stats.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
    }


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
