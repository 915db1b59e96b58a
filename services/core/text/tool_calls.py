"""Tool calls in a model's text, found while it arrives. One parser; formats are rows of a table."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace

from slipstream.core.request.results import Result
from slipstream.core.request.tools import Tool, ToolFormat, decoded_json

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
"""Letters and digits of an id: the only length that Mistral's templates take."""
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""Beginning of a call as models write it; one in another order is read when it is whole."""
_NO_CALL = re.compile(r'\{\s*"(?!name"|arguments"|parameters"|id"|type")[^"]*"')
"""Beginning of JSON that is no call."""


@dataclass(frozen=True, slots=True)
class _Syntax:
    """Text around calls: `opening` before them, what matches `beside` between and behind them.

    `bare` begins calls without an opening, at the beginning of the text only.
    """

    opening: str
    beside: re.Pattern[str]
    closing: str = ""
    bare: str = ""


_SYNTAXES = {
    ToolFormat.HERMES: _Syntax("<tool_call>", re.compile(r"(\s|</?tool_call>)*"), "</tool_call>"),
    ToolFormat.LLAMA3: _Syntax("<|python_tag|>", re.compile(r"[\s;]*"), bare="{"),
    ToolFormat.MISTRAL: _Syntax("[TOOL_CALLS]", re.compile(r"[\s,[\]]*"), bare="["),
}
_FORCED = _Syntax("", re.compile(r"\s*"), bare="{")
"""A text that a grammar makes one call."""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of the call with this index; the first one of a call has its name."""

    index: int
    name: str | None
    arguments: str
    """A part of the JSON."""


Piece = str | CallPiece
"""Text of the answer, or a piece of a call."""
_Pieces = Generator[Piece, None, bool]
"""Pieces, and then whether there may be more to read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an answer makes."""

    id: str
    name: str
    arguments: str
    """JSON of an object, as far as the model wrote it."""


def read_tool_calls(
    result: Result, tools: Sequence[Tool], *, is_forced: bool = False
) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer apart from its calls, and the calls.

    `is_forced`: whether its tool_choice was required or a tool.
    """
    info = result.prompt
    names = [tool.name for tool in tools]
    parser = ToolCallParser(None if is_forced else info.tool_format, names)
    pieces = [*parser.push(result.text), *parser.end()]
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        if isinstance(piece, CallPiece):
            index = piece.index
            call = calls.get(index) or ToolCall(
                call_id(info.request_id, index), str(piece.name), ""
            )
            calls[index] = replace(call, arguments=call.arguments + piece.arguments)
    return "".join(it for it in pieces if isinstance(it, str)), tuple(calls.values())


def call_id(request_id: str, index: int) -> str:
    """Return the id of a call: the same whenever the request is answered."""
    number = int.from_bytes(hashlib.sha256(f"{request_id} {index}".encode()).digest()[:8], "big")
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(_ID_LENGTH))


class ToolCallParser:
    """Reads a text part by part. What is no call of a known tool stays text, unchanged."""

    def __init__(self, tool_format: ToolFormat | None, names: Collection[str]) -> None:
        """`names` are of the tools; no format stands for a text that is one call and no more."""
        self._syntax = _FORCED if tool_format is None else _SYNTAXES[tool_format]
        self._names = frozenset(names)
        self._held = ""
        """What was read, but is neither text nor a call yet."""
        self._start = 0
        """Position in it where a call may begin."""
        self._is_beginning = True
        self._num_calls = 0
        self._has_call = False
        """Whether there was a call since the last opening."""
        self._nesting = _Nesting()
        self._read: Callable[[bool], _Pieces] = self._text

    def push(self, text: str) -> list[Piece]:
        """Return what is certain with this text."""
        self._held += text
        return list(self._pieces(is_end=False))

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""
        pieces = list(self._pieces(is_end=True))
        if self._held and not (self._read == self._beside and self._has_call):
            pieces.append(self._held)
        self._held = ""
        return pieces

    def _pieces(self, *, is_end: bool) -> Generator[Piece, None, None]:
        while (yield from self._read(is_end)):
            pass

    def _text(self, is_end: bool) -> _Pieces:
        """Read up to where calls open."""
        held = self._held
        place, length = self._opening()
        if place < 0:
            certain = len(held) if is_end else self._num_certain()
            yield from self._as_text(certain)
            return False
        before = held[:place].rstrip()
        if before:
            yield before
        self._held, self._start = held[len(before) :], place + length - len(before)
        self._has_call, self._read = False, self._beside
        return True

    def _opening(self) -> tuple[int, int]:
        """Return where calls open and the length of what opens them; -1 for nowhere."""
        held, opening, bare = self._held, self._syntax.opening, self._syntax.bare
        rest = held.lstrip()
        is_bare = bool(bare) and self._is_beginning and rest.startswith(bare)
        if is_bare and not opening.startswith(rest[: max(len(opening), 1)]):
            return len(held) - len(rest), 0
        return (held.find(opening) if opening else -1), len(opening)

    def _num_certain(self) -> int:
        """Return how much of what is held is text: not its end if that may belong to an opening."""
        held, opening = self._held, self._syntax.opening
        partial = (size for size in range(len(opening) - 1, 0, -1) if held.endswith(opening[:size]))
        return len(held[: len(held) - next(partial, 0)].rstrip())

    def _as_text(self, end: int) -> Generator[Piece, None, None]:
        """Yield what is held up to there as text."""
        if end:
            yield self._held[:end]
            self._held, self._is_beginning = self._held[end:], False

    def _beside(self, is_end: bool) -> _Pieces:
        """Read what is between calls, up to the next one or to other text."""
        self._start = self._syntax.beside.match(self._held, self._start).end()  # type: ignore[union-attr]
        rest = self._held[self._start :]
        if not rest or (not is_end and self._syntax.closing.startswith(rest)):
            return False
        if rest.startswith("{"):
            self._nesting, self._read = _Nesting(), self._call
            return True
        if self._has_call:
            self._held = rest
        else:
            yield from self._as_text(self._start)
        self._is_beginning, self._read = False, self._text
        return True

    def _call(self, is_end: bool) -> _Pieces:
        """Read a call up to its arguments, or all of one in another order."""
        rest = self._held[self._start :]
        head = _HEAD.match(rest)
        if head is not None and (name := decoded_json(head[1])) in self._names:
            yield CallPiece(self._num_calls, str(name), "")
            self._held = rest[head.end() :]
            self._nesting, self._read = _Nesting(), self._arguments
            return True
        end = self._nesting.end_of(rest)
        if end is None and not _NO_CALL.match(rest):
            return False
        call = None if end is None else self._whole(rest[:end])
        if call is None:
            yield from self._as_text(len(self._held) if end is None else self._start + end)
            self._read = self._text
        else:
            yield call
            self._next(rest[end:])
        return True

    def _whole(self, text: str) -> CallPiece | None:
        """Return the call in a JSON object; None for another object."""
        value = decoded_json(text)
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = decoded_json(arguments)
        if not isinstance(arguments, dict):
            return None
        return CallPiece(self._num_calls, value["name"], json.dumps(arguments, ensure_ascii=False))

    def _arguments(self, is_end: bool) -> _Pieces:
        end = self._nesting.end_of(self._held, is_new=True)
        if self._held:
            yield CallPiece(self._num_calls, None, self._held[:end])
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._nesting, self._read = _Nesting(depth=1), self._behind
        return end is not None

    def _behind(self, is_end: bool) -> _Pieces:
        """Pass over what a call has behind its arguments."""
        yield from ()
        end = self._nesting.end_of(self._held, is_new=True)
        if end is None:
            self._held = ""
            return False
        self._next(self._held[end:])
        return True

    def _next(self, held: str) -> None:
        """Go on behind a call."""
        self._held, self._start, self._has_call = held, 0, True
        self._num_calls += 1
        self._read = self._beside


class _Nesting:
    """Finds where JSON ends, by its brackets outside of strings."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._num_read = 0
        self._is_string = self._is_escaped = False

    def end_of(self, text: str, *, is_new: bool = False) -> int | None:
        """Return the position behind the last bracket; None until it is there.

        `is_new` text follows the one before; otherwise it has that one at its beginning.
        """
        for place in range(0 if is_new else self._num_read, len(text)):
            if self._closes(text[place]):
                return place + 1
        self._num_read = len(text)
        return None

    def _closes(self, char: str) -> bool:
        if self._is_string:
            is_end = char == '"' and not self._is_escaped
            self._is_escaped = char == "\\" and not self._is_escaped
            self._is_string = not is_end
            return False
        self._is_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        return char in "}]" and self._depth == 0
