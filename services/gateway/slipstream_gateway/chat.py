"""Answers of /v1/chat/completions, whole and in chunks, with tool calls."""

from collections.abc import Sequence
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
    """Tools of a request: whether one must be called, whether only one may be, and whether calls
    are shown as those of the older functions."""

    tools: tuple[Tool, ...]
    is_forced: bool
    is_single: bool
    is_older: bool = False

    def shown(self, calls: Sequence[Json]) -> Json:
        """Return calls as the field of a message that has them."""
        return {"function_call": calls[0]["function"]} if self.is_older else {"tool_calls": calls}


class AnswerParser:
    """Reads an answer as text and the calls in it, of which one counts where only one may be."""

    def __init__(self, use: ToolUse | None, prompt: PromptInfo) -> None:
        self._parser = None
        self._is_single = use is not None and use.is_single
        if use is not None:
            tool_format = None if use.is_forced else prompt.tool_format
            self._parser = ToolCallParser(tool_format, [tool.name for tool in use.tools])

    def push(self, text: str) -> list[Piece]:
        return self._counting([text] if self._parser is None else self._parser.push(text))

    def end(self) -> list[Piece]:
        return self._counting([] if self._parser is None else self._parser.end())

    def _counting(self, pieces: list[Piece]) -> list[Piece]:
        return [it for it in pieces if isinstance(it, str) or not (self._is_single and it.index)]


class ChatChoice:
    """One answer of /v1/chat/completions. Tool calls in its text become calls, one by one."""

    def __init__(self, index: int, prompt: PromptInfo, use: ToolUse | None) -> None:
        self._index, self._prompt, self._use = index, prompt, use
        self._parser = AnswerParser(use, prompt)
        self._has_calls = False

    def opening(self) -> Json | None:
        """Return the first choice of a stream, before any text."""
        return self._delta({"role": "assistant", "content": ""})

    def chunk(self, text: str, of_tokens: Logprobs) -> list[Json]:
        """Return choices of a stream with a part of the answer."""
        logprobs, deltas = chat_logprobs(of_tokens), self._deltas(self._parser.push(text))
        if logprobs is not None and not deltas:
            deltas = [{"content": ""}]
        return [
            self._delta(delta, None if index else logprobs) for index, delta in enumerate(deltas)
        ]

    def ending(self, reason: FinishReason) -> list[Json]:
        """Return the last choices of a stream: what was held back, and the reason."""
        held = map(self._delta, self._deltas(self._parser.end()))
        return [*held, {**self._delta({}), "finish_reason": self._reason(reason)}]

    def whole(self, result: Result) -> Json:
        """Return the choice of an answer that is not streamed."""
        message: Json = {"role": "assistant", "content": result.text, "refusal": None}
        if (use := self._use) is not None:
            text, calls = read_tool_calls(result, use.tools, is_forced=use.is_forced)
            if calls:
                self._has_calls = True
                found = calls[: 1 if use.is_single else None]
                shown = [_call(call.id, call.name, call.arguments) for call in found]
                message |= {"content": text or None, **use.shown(shown)}
        return {
            "index": self._index,
            "message": message,
            "logprobs": chat_logprobs(result.logprobs),
            "finish_reason": self._reason(result.finish_reason),
        }

    def _delta(self, delta: Json, logprobs: Json | None = None) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _deltas(self, pieces: list[Piece]) -> list[Json]:
        return [{"content": it} if isinstance(it, str) else self._part(it) for it in pieces]

    def _part(self, piece: CallPiece) -> Json:
        self._has_calls = True
        part: Json = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.name is not None:
            name = call_id(self._prompt.request_id, piece.index)
            part |= _call(name, piece.name, piece.arguments)
        return self._use.shown([part]) if self._use else {}

    def _reason(self, reason: FinishReason) -> str:
        if self._use is None or not self._has_calls or reason is not FinishReason.STOP:
            return reason.value
        return "function_call" if self._use.is_older else "tool_calls"


def _call(name: str, function: str, arguments: str) -> Json:
    return {"id": name, "type": "function", "function": {"name": function, "arguments": arguments}}
