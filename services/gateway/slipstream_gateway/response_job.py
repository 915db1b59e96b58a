"""Runs of /v1/responses, and their answers: items of text and calls, as events and whole."""

import hashlib
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from slipstream.client import (
    AsyncClient,
    AsyncClientSession,
    Chunk,
    FinishReason,
    PromptInfo,
    RequestOptions,
    RequestStats,
    Result,
)
from slipstream.core.errors import SlipstreamError
from slipstream.core.request.tool_calls import CallPiece, Piece, call_id
from slipstream.core.request.tools import call_schema, forced_tools, tools_of
from slipstream_gateway.chat import AnswerParser, ToolUse
from slipstream_gateway.choices import merged, opened
from slipstream_gateway.errors import http_error
from slipstream_gateway.http_io import Events, as_json
from slipstream_gateway.responses import Json, chat_logprobs, metrics
from slipstream_gateway.responses_body import ResponsesRequest
from slipstream_gateway.sdk_options import chat_options

_SHOWN = {
    *("instructions", "metadata", "parallel_tool_calls", "previous_response_id", "store"),
    *("temperature", "tool_choice", "tools", "top_p"),
}


class ResponseAnswer:
    """One answer. `opening` and `push` return events, each numbered; `whole` is all."""

    def __init__(self, whole: Json, prompt: PromptInfo, use: ToolUse | None) -> None:
        """`whole` is the response as it is before any output."""
        self.whole = {**whole, "model": prompt.model, "output": []}
        self._request_id = prompt.request_id
        self._parser = AnswerParser(use, prompt)
        self._item: Json = {}
        """The item that is being written, but for its text or arguments; empty for none."""
        self._parts: list[str] = []
        """Text or arguments of that item so far."""
        self._events: list[Json] = []
        """Events that were not returned yet."""
        self._num_events = 0

    def opening(self) -> list[Json]:
        self._add("created", response=dict(self.whole))
        self._add("in_progress", response=dict(self.whole))
        return self._taken()

    def push(self, part: Chunk | Result) -> list[Json]:
        """Return the events of a part of the answer, or of all; with its end, it is whole."""
        self._write(self._parser.push(part.text), chat_logprobs(part.logprobs))
        if part.finish_reason is not None and part.stats is not None:
            self._end(part.finish_reason, part.stats)
        return self._taken()

    def _end(self, reason: FinishReason, stats: RequestStats) -> None:
        self._write(self._parser.end(), None)
        is_whole = reason is FinishReason.STOP
        status = "completed" if is_whole else "incomplete"
        self._close(status)
        self.whole |= {
            "status": status,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "usage": _usage(stats),
            "metrics": metrics([stats]),
        }
        self._add(status, response=dict(self.whole))

    def failed(self, error: Json) -> list[Json]:
        """Return the last event of an answer that broke off."""
        self._settle()
        cause = {"code": error["code"] or "server_error", "message": error["message"]}
        self._add("failed", response={**self.whole, "status": "failed", "error": cause})
        return self._taken()

    def _write(self, pieces: list[Piece], logprobs: Json | None) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._write_text(piece, [] if logprobs is None else logprobs["content"])
                logprobs = None
            else:
                self._write_call(piece)

    def _write_text(self, text: str, logprobs: list[Json]) -> None:
        if self._item.get("type") != "message":
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._open("message", "msg", {"role": "assistant", "content": []})
            self._add("content_part.added", **self._place(), part=dict(part))
            self._item["content"] = [part]
        self._parts.append(text)
        self._item["content"][0]["logprobs"] += logprobs
        if text or logprobs:
            self._add("output_text.delta", **self._place(), delta=text, logprobs=logprobs)

    def _write_call(self, piece: CallPiece) -> None:
        if piece.name is not None:
            name = call_id(self._request_id, piece.index)
            about = {"call_id": name, "name": piece.name, "arguments": ""}
            self._open("function_call", "fc", about)
        self._parts.append(piece.arguments)
        if piece.arguments:
            self._add("function_call_arguments.delta", **self._place(), delta=piece.arguments)

    def _open(self, kind: str, prefix: str, about: Json) -> None:
        """Begin an item behind the one that is being written, if any."""
        self._close("completed")
        index = len(self.whole["output"])
        name = f"{prefix}_{self._request_id}_{index}"
        self._item = {"type": kind, "id": name, **about, "status": "in_progress"}
        self._parts = []
        self.whole["output"] = [*self.whole["output"], self._item]
        self._add("output_item.added", output_index=index, item=dict(self._item))

    def _close(self, status: str) -> None:
        """End the item that is being written, if any."""
        item = self._item
        if not item:
            return
        self._settle()
        place = self._place()
        if item["type"] == "message":
            part = item["content"][0]
            self._add("output_text.done", **place, text=part["text"], logprobs=part["logprobs"])
            self._add("content_part.done", **place, part=part)
        else:
            whole = {"name": item["name"], "arguments": item["arguments"]}
            self._add("function_call_arguments.done", **place, **whole)
        item["status"] = status
        self._add("output_item.done", output_index=place["output_index"], item=item)
        self._item = {}

    def _settle(self) -> None:
        """Put what was written into the item, if there is one."""
        if self._item.get("type") == "message":
            self._item["content"][0]["text"] = "".join(self._parts)
        elif self._item:
            self._item["arguments"] = "".join(self._parts)

    def _place(self) -> Json:
        place = {"item_id": self._item["id"], "output_index": len(self.whole["output"]) - 1}
        return {**place, "content_index": 0} if self._item["type"] == "message" else place

    def _add(self, kind: str, **fields: Any) -> None:
        event = {"type": f"response.{kind}", "sequence_number": self._num_events, **fields}
        self._events.append(event)
        self._num_events += 1

    def _taken(self) -> list[Json]:
        events, self._events = self._events, []
        return events


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

    def __init__(self, body: ResponsesRequest, request_id: str, token: str, limit: int) -> None:
        """Limit new tokens to `limit` where the body does not. Raises `HttpError`, or
        `InvalidRequest`."""
        self._body, self._request_id = body, request_id
        self._earlier = body.earlier()
        chat = body.chat()
        (self._prompt,) = chat.prompts
        self.options, self._use = chat_options(chat, request_id, limit)
        if self._earlier is not None:
            self.options["after"] = self._earlier["request"]
            _keep_tools(self.options)
        named = hashlib.sha256(f"{token}/{request_id}".encode()).hexdigest()[:32]
        self._session_id = named if self._earlier is None else self._earlier["session"]

    async def result(self, client: AsyncClient) -> Result:
        return await self._place(client).generate(self._prompt, **self.options)

    async def events(self, client: AsyncClient, wall_s: Callable[[], float]) -> Events:
        """Yield the events of the answer. An error of a response that has begun is the last one, as
        the status was sent."""
        (stream,) = await opened(self._place(client).stream(self._prompt, **self.options))
        answer = self.answer(stream.prompt, int(wall_s()))
        try:
            async with aclosing(merged([stream])) as chunks:
                yield _bytes(answer.opening())
                async for _, chunk in chunks:
                    yield _bytes(answer.push(chunk))
        except SlipstreamError as error:
            yield _bytes(answer.failed(http_error(error).body()["error"]))

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
            **dict.fromkeys(("error", "incomplete_details", "usage")),
            "background": False,
            "max_output_tokens": self.options["max_tokens"],
            "truncation": "disabled",
            **body.model_dump(include=_SHOWN),
            "text": body.text.model_dump(by_alias=True, exclude_none=True),
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


def _bytes(events: list[Json]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + as_json(event) + b"\n\n"
        for event in events
    )
