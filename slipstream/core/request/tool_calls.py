"""Tool calls in a model's text, found while it arrives. One parser; formats are rows of a table."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from slipstream.core.request.results import Result
from slipstream.core.request.tools import JsonNesting, Tool, ToolFormat, decoded_json, escaped_json

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
"""Letters and digits of an id: the only length that Mistral's templates take."""
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""Beginning of a call as models write it; one in another order is read when it is whole."""
_KEYS = {"name", "arguments", "parameters", "id", "type"}
"""Keys of a call; without others, one without arguments has none to give."""
_NO_CALL = re.compile(r'\{\s*"(?!name"|arguments"|parameters"|id"|type")[^"]*"')
"""Beginning of JSON that is no call."""
_KEY_MARKS, _HEAD_MARKS = 2, 5
"""Brackets and ends of strings up to the end of the first key, and of the beginning of a call."""


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
    ToolFormat.HERMES: _Syntax("<tool_call>", re.compile(r"(?:\s|</?tool_call>)*"), "</tool_call>"),
    ToolFormat.LLAMA3: _Syntax("<|python_tag|>", re.compile(r"[\s;]*"), bare="{"),
    ToolFormat.MISTRAL: _Syntax(
        "[TOOL_CALLS]", re.compile(r"(?:\[TOOL_CALLS\]|[\s,\]]|\[(?=[^T]))*"), bare="["
    ),
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
    """Return an answer's text apart from its calls, and these; `is_forced`: one had to be made."""
    info = result.prompt
    names = [tool.name for tool in tools]
    parser = ToolCallParser(None if is_forced else info.tool_format, names)
    pieces = [*parser.push(result.text), *parser.end()]
    found, own = [], [piece for piece in pieces if isinstance(piece, CallPiece)]
    for index, group in groupby(own, lambda piece: piece.index):
        parts = list(group)
        arguments = "".join(part.arguments for part in parts)
        found.append(ToolCall(call_id(info.request_id, index), str(parts[0].name), arguments))
    return "".join(it for it in pieces if isinstance(it, str)), tuple(found)


def call_id(request_id: str, index: int) -> str:
    """Return the id of a call: the same whenever the request is answered."""
    number = int.from_bytes(hashlib.sha256(f"{request_id} {index}".encode()).digest()[:8], "big")
    return "".join(_ALPHABET[number // 62**place % 62] for place in range(_ID_LENGTH))


class ToolCallParser:
    """Reads a text part by part, in work that is linear in the text, however it is cut.

    What is no call of a known tool stays text, unchanged.
    """

    def __init__(self, tool_format: ToolFormat | None, names: Collection[str]) -> None:
        """`names` are of the tools; no format stands for a text that is one call and no more."""
        self._syntax = _FORCED if tool_format is None else _SYNTAXES[tool_format]
        self._names = frozenset(names)
        beginnings = product(names, ("{", "[ARGS]{") if tool_format is ToolFormat.MISTRAL else ())
        self._named = {name + end: name for name, end in beginnings}
        """Beginnings of calls that have the tool's name before their arguments, and the name."""
        self._held: list[str] = []
        """Pieces that were read, but are neither text nor a call yet."""
        self._num_before = 0
        """Number of its parts before the call that is being read."""
        self._rest, self._at = "", 0
        """Unread text, and the position up to which it was examined."""
        self._is_beginning, self._is_whole, self._num_calls = True, False, 0
        self._has_call = False
        """True if there was a call since the last opening."""
        self._nesting = JsonNesting()
        self._read: Callable[[bool], _Pieces] = self._text

    def push(self, text: str) -> list[Piece]:
        """Return what is certain with this text."""
        self._rest, self._at = self._rest[self._at :] + text, 0
        return list(self._pieces(is_end=False))

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""
        pieces = list(self._pieces(is_end=True))
        self._hold(len(self._rest))
        if not (self._read == self._beside and self._has_call):
            pieces += self._as_text()
        return pieces

    def _pieces(self, *, is_end: bool) -> Generator[Piece, None, None]:
        while (yield from self._read(is_end)):
            pass

    def _hold(self, end: int) -> None:
        if end > self._at:
            self._held.append(self._rest[self._at : end])
            self._at = end

    def _as_text(self) -> Generator[Piece, None, None]:
        if self._held:
            yield "".join(self._held)
            self._held, self._is_beginning = [], False

    def _text(self, is_end: bool) -> _Pieces:
        """Read up to where calls open. Spaces are held: they may be before a call."""
        place, length = self._opening()
        end = place if place >= 0 else len(self._rest) - (0 if is_end else self._num_partial())
        told = self._rest[self._at : end]
        num_told = len(told if is_end and place < 0 else told.rstrip())
        if num_told:
            self._hold(self._at + num_told)
            yield from self._as_text()
        self._hold(end + length)
        if place >= 0:
            self._has_call, self._read = False, self._beside
        return place >= 0

    def _opening(self) -> tuple[int, int]:
        """Return where calls open and the length of what opens them; -1 for nowhere."""
        rest, opening, bare = self._rest, self._syntax.opening, self._syntax.bare
        if bare and self._is_beginning:
            begin = len(rest) - len(rest[self._at :].lstrip())
            first = rest[begin : begin + max(len(opening), 1)]
            is_call = first.startswith(bare) and not opening.startswith(first)
            if is_call or (first and any(self._may_be(begin, word) for word in self._named)):
                return begin, 0
        place = rest.find(opening, self._at) if opening else -1
        return place, len(opening) if place >= 0 else 0

    def _num_partial(self) -> int:
        """Return the length of the text's end if that may belong to an opening, else 0."""
        opening = self._syntax.opening
        sizes = range(len(opening) - 1, 0, -1)
        return next((size for size in sizes if self._rest.endswith(opening[:size], self._at)), 0)

    def _beside(self, is_end: bool) -> _Pieces:
        """Read what is between calls, up to the next one or to other text."""
        self._hold(self._syntax.beside.match(self._rest, self._at).end())  # type: ignore[union-attr]
        words = () if is_end else (self._syntax.opening, self._syntax.closing, *self._named)
        num_left = len(self._rest) - self._at
        if not num_left or any(num_left < len(it) and self._may_be(self._at, it) for it in words):
            return False
        if self._rest.startswith("{", self._at):
            self._nesting, self._num_before, self._read = JsonNesting(), len(self._held), self._call
            return True
        for beginning, name in self._named.items():
            if self._rest.startswith(beginning, self._at):
                self._at += len(beginning)
                yield from self._open(name, is_whole=True)
                return True
        self._held = [] if self._has_call else self._held
        yield from self._as_text()
        self._is_beginning, self._read = False, self._text
        return True

    def _may_be(self, position: int, word: str) -> bool:
        """Return whether the text from this position on is a word, or its beginning."""
        return word.startswith(self._rest[position : position + len(word)])

    def _open(self, name: str, *, is_whole: bool) -> Generator[Piece, None, None]:
        """Begin arguments, the bracket of which was read; where `is_whole`, they end the call."""
        yield CallPiece(self._num_calls, name, "")
        self._held, self._at, self._is_whole = [], self._at - 1, is_whole
        self._nesting, self._read = JsonNesting(), self._arguments

    def _call(self, is_end: bool) -> _Pieces:
        """Read a call up to its arguments, or all of one in another order."""
        nesting = self._nesting
        while end := nesting.next_mark(self._rest, self._at):
            self._hold(end)
            if nesting.num_marks == _KEY_MARKS and _NO_CALL.match(self._object()):
                break
            if nesting.num_marks == _HEAD_MARKS and (name := self._name()) is not None:
                yield from self._open(name, is_whole=False)
                return True
            if not nesting.depth:
                if call := self._whole(self._object()):
                    yield call
                    self._next()
                    return True
                break
        else:
            self._hold(len(self._rest))
            return False
        yield from self._as_text()
        self._read = self._text
        return True

    def _object(self) -> str:
        return "".join(self._held[self._num_before :])

    def _name(self) -> str | None:
        head = _HEAD.match(self._object())
        name = None if head is None else decoded_json(head[1])
        return name if name in self._names else None

    def _whole(self, text: str) -> CallPiece | None:
        value = decoded_json(text)
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if arguments is None and value.keys() <= _KEYS:
            arguments = {}
        if isinstance(arguments, str):
            arguments = decoded_json(arguments)
        if not isinstance(arguments, dict):
            return None
        return CallPiece(self._num_calls, value["name"], json.dumps(arguments, ensure_ascii=False))

    def _arguments(self, is_end: bool) -> _Pieces:
        states = self._nesting.is_string, self._nesting.is_escaped
        end = self._nesting.end_of(self._rest, self._at)
        if arguments := self._rest[self._at : end or None]:
            yield CallPiece(self._num_calls, None, escaped_json(arguments, *states))
        self._at += len(arguments)
        if end and self._is_whole:
            self._next()
        elif end:
            self._nesting, self._read = JsonNesting(depth=1), self._behind
        return end > 0

    def _behind(self, is_end: bool) -> _Pieces:
        """Pass over what a call has behind its arguments."""
        yield from ()
        end = self._nesting.end_of(self._rest, self._at)
        self._at = end or len(self._rest)
        if end:
            self._next()
        return end > 0

    def _next(self) -> None:
        self._held, self._has_call, self._read = [], True, self._beside
        self._num_calls += 1
