"""Answers of /v1/responses: items of text and calls, as events while they come, and whole."""

from typing import Any

from slipstream.client import FinishReason, PromptInfo, RequestStats
from slipstream.core.logprobs import Logprobs
from slipstream.core.request.tool_calls import CallPiece, Piece, call_id
from slipstream_gateway.chat import ToolUse, parser_of
from slipstream_gateway.responses import Json, chat_logprobs, metrics


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
        return self._events(pieces, chat_logprobs(of_tokens))

    def end(self, reason: FinishReason, stats: RequestStats) -> list[Json]:
        """Return the last events; then the response is whole."""
        events = [] if self._parser is None else self._events(self._parser.end(), None)
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

    def _events(self, pieces: list[Piece], logprobs: Json | None) -> list[Json]:
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
