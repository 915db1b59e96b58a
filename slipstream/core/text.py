"""Incremental detokenization: whole characters only, stop strings held back.

Works with any `decode(ids) -> str`. What is emitted never has to be taken back: bytes of a
character that is not complete yet, and text that may be the beginning of a stop string, wait
for more tokens, and the tokens wait with their text. A character has at most four bytes, so at
most three tokens wait for it; the work for a token does not grow with the text before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.errors import InvalidRequest, check, check_fits
from slipstream.core.sequence import common_prefix

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 240
_INCOMPLETE = "\ufffd"
_MAX_CHARACTER = 4
"""Bytes of a character, and so its tokens, at most."""
_BLOCK = 64
"""Tokens after which text is emitted within a push: waiting text is copied with every token."""


class Detokenizer(Protocol):
    """Text of tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are no whole character at its end become U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token, which need not be whole characters; none where they are not known."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole tokens and all of their text. `is_stopped` if a stop string ended it.

    On a stop the text ends before the stop string; `tokens` are those up to the one that
    completed it.
    """

    text: str
    tokens: tuple[int, ...]
    is_stopped: bool = False


def check_stop_strings(stop: Sequence[str]) -> None:
    """Raises `InvalidRequest` for stop strings that are empty, too many or too long."""
    check_fits("stop has", len(stop), "strings", MAX_STOP_STRINGS)
    for string in stop:
        check_unicode(string, "stop")
        size = len(string.encode())
        is_right = 0 < size <= MAX_STOP_BYTES
        check(is_right, "stop has a text whose size", size, f"from 1 to {MAX_STOP_BYTES} bytes")


class TextStream:
    """Turns one request's tokens into text, as they come."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        *,
        num_sent: int = 0,
        before: Sequence[int] = (),
    ) -> None:
        """`num_sent` leading tokens, and their text, were emitted before: they are taken in, but
        not emitted again. The text goes on from tokens `before` it, if any: some decoders drop the
        first space of a text."""
        check_stop_strings(stop)
        self._decode = decode
        self._stop = tuple(stop)
        self._longest_stop = max(map(len, stop), default=0)
        before = before[-_MAX_CHARACTER:]
        self._tokens = [] if decode(before).endswith(_INCOMPLETE) else list(before)
        self._num_before = len(self._tokens)
        self._ends = [0] * self._num_before
        """Length of the text up to each settled token; a settled token's text is complete."""
        self._text = ""
        self._begin = 0
        """Length of the text that was emitted."""
        self._context = 0
        """Start of decoding: some decoders render a token by the one before it."""
        self._num_open = 0
        """Characters that decoding the settled tokens gives for a character they only begin."""
        self._num_sent = self._num_before + num_sent

    @property
    def num_tokens(self) -> int:
        """Tokens taken in: those behind a stop string never are."""
        return len(self._tokens) - self._num_before

    def push(self, tokens: Sequence[int]) -> Piece:
        """Take final tokens in; what can be emitted of them and of those held back."""
        if len(tokens) <= _BLOCK:
            return self._push(tokens)
        pieces: list[Piece] = []
        for start in range(0, len(tokens), _BLOCK):
            pieces.append(self._push(tokens[start : start + _BLOCK]))
            if pieces[-1].is_stopped:
                break
        return joined(pieces)

    def finish(self) -> Piece:
        """Everything held back, when no more tokens come."""
        self._settle(is_last=True)
        return self._emit(self._end)

    @property
    def _end(self) -> int:
        return self._begin + len(self._text)

    def _push(self, tokens: Sequence[int]) -> Piece:
        for token in tokens:
            self._tokens.append(token)
            before = self._end
            if self._settle(is_last=False) and (end := self._stop_start(before)) is not None:
                return self._stopped(end)
        return self._emit(self._end - self._held_back())

    def _settle(self, *, is_last: bool) -> bool:
        """Append the text of the newest tokens, unless it ends within a character."""
        start, num_settled, end = self._context, len(self._ends), len(self._tokens)
        known = self._decode(self._tokens[start:num_settled])
        text = self._decode(self._tokens[start:])
        num_known = len(known) - self._num_open
        if not text.endswith(_INCOMPLETE) or is_last:
            if len(text) > num_known or end - start > _BLOCK:  # a context without text is none
                self._context = num_settled
            self._num_open = 0
        elif end - num_settled < _MAX_CHARACTER:
            return False
        else:
            # What the oldest token begins is a character or none by now.
            end = num_settled + 1
            oldest = self._decode(self._tokens[start:end])
            text = text[: common_prefix(oldest, text)]
            self._context = max(start, end - _MAX_CHARACTER)
            self._num_open = len(oldest) - len(text)
        self._text += text[num_known:]
        self._ends += [self._end] * (end - num_settled)
        return True

    def _stop_start(self, before: int) -> int | None:
        """Return where the first stop string in the text not sent yet begins; it reaches beyond
        the text's length `before`, as none was there then."""
        if not self._stop or len(self._ends) < self._num_sent:  # what was sent is free of them
            return None
        sent = self._ends[self._num_sent - 1] if self._num_sent else 0
        start = max(sent, before - self._longest_stop + 1) - self._begin
        found = [self._text.find(string, start) for string in self._stop]
        return min((self._begin + position for position in found if position >= 0), default=None)

    def _held_back(self) -> int:
        """Length of the longest end of the text that some stop string begins with."""
        for size in range(min(self._longest_stop - 1, len(self._text)), 0, -1):
            ending = self._text[-size:]
            if any(string.startswith(ending) for string in self._stop):
                return size
        return 0

    def _emit(self, length: int) -> Piece:
        """Tokens whose text ends within the first `length` characters, with that text."""
        start = self._num_sent
        if len(self._ends) < start:
            self._take(self._end)
            return Piece("", ())
        self._take(self._ends[start - 1] if start else 0)
        while self._num_sent < len(self._ends) and self._ends[self._num_sent] <= length:
            self._num_sent += 1
        text = self._take(self._ends[self._num_sent - 1] if self._num_sent else 0)
        return Piece(text, tuple(self._tokens[start : self._num_sent]))

    def _stopped(self, end: int) -> Piece:
        start = self._num_sent
        self._take(self._ends[start - 1] if start else 0)
        self._num_sent = len(self._ends)
        return Piece(self._take(end), tuple(self._tokens[start:]), is_stopped=True)

    def _take(self, end: int) -> str:
        """Text up to its length `end` that was not taken before."""
        size = max(end - self._begin, 0)
        text, self._text = self._text[:size], self._text[size:]
        self._begin += size
        return text


def joined(pieces: Sequence[Piece]) -> Piece:
    text = "".join(piece.text for piece in pieces)
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return Piece(text, tokens, any(piece.is_stopped for piece in pieces))


def check_unicode(text: str, name: str) -> None:
    """Raises `InvalidRequest` for text that has no bytes: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} is not valid Unicode ({error.reason})") from None
