"""Tokens that may follow a session's output by its grammar: a function of the output alone."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.grammar import Grammar
from slipstream.core.sequence import common_prefix
from slipstream.core.tree import MAX_NODES

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NO_WAY = "NoExtension"
"""Beginning of the library's message where nothing may follow."""
_MAX_MESSAGE = 240
_LONGEST_OPENING = 32
_T = TypeVar("_T")


class CompiledGrammar:
    """Matchers of one grammar. Copies of one matcher share its compiled states, and the library's
    limits on them."""

    def __init__(
        self,
        grammar: Grammar,
        matcher: "LLMatcher",
        on_renewed: Callable[["CompiledGrammar"], None],
        opening: re.Pattern[bytes] | None = None,
    ) -> None:
        """`on_renewed` has a spare matcher made elsewhere, now and whenever that was taken. Texts
        are followed from the end of what `opening` matches, if it is given."""
        self.grammar = grammar
        self.opening = opening
        self.spare: LLMatcher | None = None
        """A matcher that has read nothing."""
        self._shared = matcher
        self._on_renewed = on_renewed
        on_renewed(self)

    def matcher(self) -> "LLMatcher":
        """Return a matcher at the beginning of a text, at once."""
        return self._shared.deep_copy()

    def fresh(self) -> "LLMatcher":
        """Return a matcher that shares nothing with those before it, but with those after it.

        Raises `CapacityError` while no spare has been made since the last one was taken.
        """
        if self.spare is None:
            raise CapacityError(
                f"the {self.grammar.kind.value} is used up by other requests and is compiled anew;"
                " try again later"
            )
        self._shared, self.spare = self.spare, None
        self._on_renewed(self)
        return self.matcher()


class _OtherText(InvalidRequest):
    """The output is not of the grammar."""


class _LimitReached(Exception):
    """The matcher can't go on; the message has the reason."""


class GrammarConstraint:
    """`core.verify.distribution.Constraint` by one grammar, for one thread at a time."""

    def __init__(
        self, compiled: CompiledGrammar, tokenizer: "LLTokenizer", stop_token_ids: frozenset[int]
    ) -> None:
        self.grammar = compiled.grammar
        self.stop_token_ids = stop_token_ids
        self._compiled = compiled
        self._matcher = compiled.matcher()
        self._tokenizer = tokenizer
        self._size = tokenizer.vocab_size
        self._ends = sorted(stop_token_ids | set(tokenizer.eos_tokens))
        self._stops = np.array(sorted(stop_token_ids), np.int64)
        self._read: list[int] = []
        self._last: tuple[list[int], NDArray[np.int64]] | None = None
        self._free: list[int] = []
        """The newest output in which nothing was opened."""

    def allowed(self, output: Sequence[int]) -> NDArray[np.int64] | None:
        """See `core.verify.distribution.Constraint.allowed`. Only stop tokens follow a stop token.
        Anything follows where nothing was opened, or text of another form was."""
        if self._compiled.opening is None:
            return self._ids(output)
        start = self._start(output)
        with suppress(_OtherText):
            return None if start is None else self._ids(output[start:])
        return None

    def _start(self, output: Sequence[int]) -> int | None:
        """Return the token with which the grammar begins; None where nothing was opened."""
        opening, size = self._compiled.opening, common_prefix(self._free, output)
        if opening is None:
            return 0
        if size == len(output):
            return None
        first = max(0, size - _LONGEST_OPENING)
        decode = self._tokenizer.decode_bytes
        found = None
        if first == 0 or not opening.pattern.startswith(b"\\A"):
            found = opening.search(decode(list(output[first:])))
        if found is None:
            self._free = list(output)
            return None
        end = 0
        while (end := end + len(decode([output[first]]))) <= found.end():
            first += 1
        self._free = list(output[:first])
        return first

    def _ids(self, output: Sequence[int]) -> NDArray[np.int64]:
        if self._last is not None and self._last[0] == output:
            return self._last[1]
        ids = self._retried(self._allowed, output)
        self._last = list(output), ids
        return ids

    def forced(self, output: Sequence[int]) -> tuple[int, ...]:
        """See `Constraint.forced`: in the tokens that such a text is cut into, no more than a tree
        may have, and none where the grammar can't be followed."""
        start = self._start(output)
        if start is None:
            return ()
        try:
            self._retried(self._follow, output[start:])
        except (InvalidRequest, CapacityError):  # raised by `allowed` where it matters
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:MAX_NODES])

    def check(self, output: Sequence[int]) -> None:
        """Raise `InvalidRequest` unless the grammar allows the output, which has not ended."""
        if not self.stop_token_ids.isdisjoint(output):
            raise InvalidRequest("nothing follows a stop token, but the output has one")
        if self._compiled.opening is None:
            self._retried(self._follow, output)

    def _retried(self, job: Callable[[Sequence[int]], _T], output: Sequence[int]) -> _T:
        """Return the result of a job on the output. At the library's limits the job is repeated
        with a fresh matcher: other requests may have used up what was shared.

        Raises `InvalidRequest` where that gets no further, `CapacityError` where there is none.
        """
        try:
            return job(output)
        except _LimitReached:
            self._restart(self._compiled.fresh())
        try:
            return job(output)
        except _LimitReached as error:
            self._restart(self._compiled.matcher())  # after an error a matcher is of no use
            raise InvalidRequest(str(error)) from None

    def _restart(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._read, self._last = [], None

    def _allowed(self, output: Sequence[int]) -> NDArray[np.int64]:
        if not self.stop_token_ids.isdisjoint(output):
            return self._stops
        self._follow(output)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        is_allowed = np.unpackbits(bits, count=self._size, bitorder="little")
        is_done = self._matcher.is_accepting()
        self._require_sound(output)
        is_allowed[self._ends] = 0
        if is_done:
            is_allowed[self._stops] = 1
        ids = np.flatnonzero(is_allowed)
        if not len(ids):
            raise self._limit_reached(output, "nothing may follow")
        return ids

    def _follow(self, output: Sequence[int]) -> None:
        """Let the matcher read exactly this output, in as few steps back and forth as it can."""
        num_same = common_prefix(self._read, output)
        if num_same < len(self._read) and self._compiled.opening is not None:
            # The library goes back wrongly where spaces are optional.
            self._restart(self._compiled.matcher())
            num_same = 0
        read = self._read
        if num_same < len(read):
            self._matcher.rollback(len(read) - num_same)
            del read[num_same:]
        news = list(output[num_same:])
        num_read = self._matcher.try_consume_tokens(news)
        read += news[:num_read]
        self._require_sound(output)
        if num_read < len(news):
            self._matcher.compute_bitmask()  # the library reports its limits here only
            self._require_sound(output)
            raise _OtherText(
                f"token {num_same + num_read} of the output, {news[num_read]}, does not follow the"
                f" {self.grammar.kind.value}"
            )

    def _require_sound(self, output: Sequence[int]) -> None:
        if self._matcher.is_error():
            reason = one_line(self._matcher.get_error())
            is_end = reason.startswith(NO_WAY)
            raise self._limit_reached(output, "nothing may follow" if is_end else reason)

    def _limit_reached(self, output: Sequence[int], reason: str) -> _LimitReached:
        name = self.grammar.kind.value
        return _LimitReached(f"the {name} can't be followed beyond {len(output)} tokens: {reason}")


def one_line(message: str) -> str:
    """Return what is essential of the library's message, as one line of printable text."""
    lines = message.strip().splitlines() or [""]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (errors or lines)[0]
    printable = "".join(char if char.isprintable() else " " for char in line)
    return printable if len(printable) <= _MAX_MESSAGE else printable[:_MAX_MESSAGE] + "…"
