"""Answers of /v1/chat/completions, whole and in chunks, with tool calls."""

from dataclasses import dataclass

from slipstream.client import FinishReason, PromptInfo, Result
from slipstream.core.logprobs import Logprobs
from slipstream.core.request.tool_calls import (
    CallPiece,
    Piece,
    ToolCallParser,
    call_id,
    read_tool_calls,
)
from slipstream.core.request.tools import Tool
from slipstream_gateway.responses import Json, chat_logprobs


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of a request: whether one must be called, and whether only one may be."""

    tools: tuple[Tool, ...]
    is_forced: bool
    is_single: bool


class ChatChoice:
    """One answer of /v1/chat/completions. Tool calls in its text become calls, one by one."""

    def __init__(self, index: int, prompt: PromptInfo, use: ToolUse | None) -> None:
        self._index, self._prompt, self._use = index, prompt, use
        self._parser = None if use is None else parser_of(use, prompt)
        self._has_calls = False

    def opening(self) -> Json | None:
        """Return the first choice of a stream, before any text."""
        return self._delta({"role": "assistant", "content": ""})

    def chunk(self, text: str, of_tokens: Logprobs) -> list[Json]:
        """Return choices of a stream with a part of the answer."""
        parser, logprobs = self._parser, chat_logprobs(of_tokens)
        pieces: list[Piece] = [text] if parser is None else parser.push(text)
        deltas = self._deltas(pieces)
        if logprobs is not None and not deltas:
            deltas = [{"content": ""}]
        return [
            self._delta(delta, None if index else logprobs) for index, delta in enumerate(deltas)
        ]

    def ending(self, reason: FinishReason) -> list[Json]:
        """Return the last choices of a stream: what was held back, and the reason."""
        held = [] if self._parser is None else self._deltas(self._parser.end())
        last = {**self._delta({}), "finish_reason": self._reason(reason)}
        return [*map(self._delta, held), last]

    def whole(self, result: Result) -> Json:
        """Return the choice of an answer that is not streamed."""
        message: Json = {"role": "assistant", "content": result.text, "refusal": None}
        if (use := self._use) is not None:
            text, calls = read_tool_calls(result, use.tools, is_forced=use.is_forced)
            if calls:
                self._has_calls = True
                message["content"] = text or None
                message["tool_calls"] = [
                    _call(call.id, call.name, call.arguments)
                    for call in calls[: 1 if use.is_single else None]
                ]
        return {
            "index": self._index,
            "message": message,
            "logprobs": chat_logprobs(result.logprobs),
            "finish_reason": self._reason(result.finish_reason),
        }

    def _delta(self, delta: Json, logprobs: Json | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _deltas(self, pieces: list[Piece]) -> list[Json]:
        deltas: list[Json] = []
        for piece in pieces:
            if isinstance(piece, str):
                deltas.append({"content": piece})
            elif piece.index == 0 or not (self._use and self._use.is_single):
                self._has_calls = True
                deltas.append({"tool_calls": [self._part(piece)]})
        return deltas

    def _part(self, piece: CallPiece) -> Json:
        if piece.name is None:
            return {"index": piece.index, "function": {"arguments": piece.arguments}}
        name = call_id(self._prompt.request_id, piece.index)
        return {"index": piece.index, **_call(name, piece.name, piece.arguments)}

    def _reason(self, reason: FinishReason) -> str:
        return "tool_calls" if self._has_calls and reason is FinishReason.STOP else reason.value


class ChatFormat:
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, use: ToolUse | None = None) -> None:
        self._use = use

    def choice(self, index: int, prompt: PromptInfo) -> ChatChoice:
        return ChatChoice(index, prompt, self._use)


def parser_of(use: ToolUse, prompt: PromptInfo) -> ToolCallParser:
    names = [tool.name for tool in use.tools]
    return ToolCallParser(None if use.is_forced else prompt.tool_format, names)


def _call(name: str, function: str, arguments: str) -> Json:
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}
