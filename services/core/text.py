"""From token ids to text as they become final: whole characters only, stop strings held back.

Works with any `decode(ids) -> str`. What is emitted never has to be taken back: bytes of a
character that is not complete yet, and text that may be the beginning of a stop string, wait
for more tokens, and the tokens wait with their text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.core.errors import InvalidRequest
from slipstream.core.prompt import check_unicode

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 240
_INCOMPLETE = "\ufffd"


class Speller(Protocol):
    """What tokens are as text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are no whole character at its end become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token, which need not be whole characters; none where they are not known."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole tokens and all of their text. `is_stopped` says that a stop string ended it.

    On a stop the text ends before the stop string; `tokens` are those up to the one that
    completed it.
    """

    text: str
    tokens: tuple[int, ...]
    is_stopped: bool = False


def check_stop_strings(stop: Sequence[str]) -> None:
    """Raises `InvalidRequest` for stop strings that are empty, too many or too long."""
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"{len(stop)} stop strings are given, but at most {MAX_STOP_STRINGS} fit"
        )
    for string in stop:
        check_unicode(string, "a stop string")
        size = len(string.encode())
        if not 0 < size <= MAX_STOP_BYTES:
            raise InvalidRequest(
                f"a stop string has {size} bytes, but must have from 1 to {MAX_STOP_BYTES}"
            )


class TextStream:
    """Turns one request's tokens into text, as they come."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        *,
        num_sent: int = 0,
    ) -> None:
        """`num_sent` leading tokens, and their text, were emitted before: they are taken in, but
        not emitted again."""
        check_stop_strings(stop)
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._ends: list[int] = []
        """Length of the text up to each settled token; a settled token's text is complete."""
        self._text = ""
        self._context = 0
        """Where decoding starts: some decoders render a token by the one before it."""
        self._num_sent = num_sent

    @property
    def num_tokens(self) -> int:
        """Tokens taken in: those behind a stop string never are."""
        return len(self._tokens)

    def push(self, tokens: Sequence[int]) -> Piece:
        """Take final tokens in; what can be emitted of them and of those held back."""
        for token in tokens:
            self._tokens.append(token)
            if self._settle(is_last=False) and (end := self._stop_start()) is not None:
                return self._stopped(end)
        return self._emit(len(self._text) - self._held_back())

    def finish(self) -> Piece:
        """Everything held back, when no more tokens come."""
        self._settle(is_last=True)
        return self._emit(len(self._text))

    def _settle(self, *, is_last: bool) -> bool:
        """Append the text of the newest tokens, unless it ends within a character."""
        num_settled = len(self._ends)
        known = self._decode(self._tokens[self._context : num_settled])
        text = self._decode(self._tokens[self._context :])
        if text.endswith(_INCOMPLETE) and not is_last:
            return False
        self._text += text[len(known) :]
        self._context = num_settled
        self._ends += [len(self._text)] * (len(self._tokens) - num_settled)
        return True

    def _stop_start(self) -> int | None:
        """Where the first stop string in the text that is not sent yet begins."""
        if len(self._ends) < self._num_sent:  # what was sent is free of them
            return None
        sent = self._ends[self._num_sent - 1] if self._num_sent else 0
        found = [self._text.find(string, sent) for string in self._stop]
        return min((at for at in found if at >= 0), default=None)

    def _held_back(self) -> int:
        """Length of the longest end of the text that some stop string begins with."""
        longest = max(map(len, self._stop), default=0)
        for size in range(min(longest - 1, len(self._text)), 0, -1):
            ending = self._text[-size:]
            if any(string.startswith(ending) for string in self._stop):
                return size
        return 0

    def _emit(self, length: int) -> Piece:
        """Tokens whose text ends within the first `length` characters, with that text."""
        start = self._num_sent
        if len(self._ends) < start:
            return Piece("", ())
        begin = self._ends[start - 1] if start else 0
        while self._num_sent < len(self._ends) and self._ends[self._num_sent] <= length:
            self._num_sent += 1
        end = self._ends[self._num_sent - 1] if self._num_sent else 0
        return Piece(self._text[begin:end], tuple(self._tokens[start : self._num_sent]))

    def _stopped(self, end: int) -> Piece:
        start = self._num_sent
        begin = self._ends[start - 1] if start else 0
        self._num_sent = len(self._ends)
        return Piece(self._text[begin:end], tuple(self._tokens[start:]), is_stopped=True)
