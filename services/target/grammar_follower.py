"""What may follow a session's output by its grammar: a function of the output's tokens alone.

A follower goes back and on to the output that is asked about. Knows no logits and no caches.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from slipstream.core.errors import CapacityError, InvalidRequest
from slipstream.core.options import MAX_NODES
from slipstream.target.compiled import NO_WAY, CompiledGrammar, sentence

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_T = TypeVar("_T")


class _Spent(Exception):
    """A matcher that goes no further, and why."""


class Follower:
    """`core.constraint.Constraint` by one grammar, for one thread at a time."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        tokenizer: "LLTokenizer",
        stop_token_ids: frozenset[int],
    ) -> None:
        self.grammar = compiled.grammar
        self.stop_token_ids = stop_token_ids
        self.tells_forced = True
        self._compiled = compiled
        self._matcher = compiled.matcher()
        self._size = tokenizer.vocab_size
        self._ends = sorted(stop_token_ids | set(tokenizer.eos_tokens))
        self._stops = torch.tensor(sorted(stop_token_ids))
        self._past: list[int] = []
        """What the matcher has read."""
        self._last: tuple[list[int], Tensor] | None = None

    def allowed(self, output: Sequence[int]) -> Tensor:
        """See `core.constraint.Constraint.allowed`. Behind a stop token come stop tokens only."""
        if self._last is not None and self._last[0] == output:
            return self._last[1]
        ids = self._tried(self._found, output)
        self._last = list(output), ids
        return ids

    def forced(self, output: Sequence[int]) -> tuple[int, ...]:
        """See `core.constraint.Constraint.forced`: in the tokens that such a text is cut into; no
        more than a tree may have, and none where the grammar can't be followed."""
        if not self.tells_forced:
            return ()
        try:
            self.check(output)
        except (InvalidRequest, CapacityError):  # what asks for the slot raises it
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:MAX_NODES])

    def check(self, output: Sequence[int]) -> None:
        """Raises `InvalidRequest` unless the grammar allows the output, which has not ended."""
        if not self.stop_token_ids.isdisjoint(output):
            raise InvalidRequest("nothing follows a stop token, but the output has one")
        self._tried(self._follow, output)

    def _tried(self, job: Callable[[Sequence[int]], _T], output: Sequence[int]) -> _T:
        """Return what a job on the output gives. At the library's limits it is done again by a
        fresh matcher: others may have used up what was shared.

        Raises `InvalidRequest` where that gets no further, `CapacityError` where there is none.
        """
        try:
            return job(output)
        except _Spent:
            self._begin(self._compiled.fresh())
        try:
            return job(output)
        except _Spent as error:
            self._begin(self._compiled.matcher())  # one that met an error is of no use any more
            raise InvalidRequest(str(error)) from None

    def _begin(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._past, self._last = [], None

    def _found(self, output: Sequence[int]) -> Tensor:
        if not self.stop_token_ids.isdisjoint(output):
            return self._stops
        self._follow(output)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        is_allowed = np.unpackbits(bits, count=self._size, bitorder="little")
        is_done = self._matcher.is_accepting()
        self._require_sound(output)
        is_allowed[self._ends] = 0
        if is_done:
            is_allowed[self._stops.numpy()] = 1
        ids = torch.from_numpy(np.flatnonzero(is_allowed))
        if not len(ids):
            raise self._spent(output, "nothing may follow")
        return ids

    def _follow(self, output: Sequence[int]) -> None:
        """Have the matcher read exactly this output, by as few steps back and forth as it takes."""
        past = self._past
        num_same = len(past)
        if past != output[:num_same]:
            pairs = enumerate(zip(past, output, strict=False))
            num_same = next((at for at, (a, b) in pairs if a != b), min(len(past), len(output)))
            self._matcher.rollback(len(past) - num_same)
            del past[num_same:]
        news = list(output[num_same:])
        num_read = self._matcher.try_consume_tokens(news)
        past += news[:num_read]
        self._require_sound(output)
        if num_read < len(news):
            self._matcher.compute_bitmask()  # at its limits the library says so here only
            self._require_sound(output)
            raise InvalidRequest(
                f"token {num_same + num_read} of the output, {news[num_read]}, does not follow the"
                f" {self.grammar.kind.value}"
            )

    def _require_sound(self, output: Sequence[int]) -> None:
        if self._matcher.is_error():
            reason = sentence(self._matcher.get_error())
            is_end = reason.startswith(NO_WAY)
            raise self._spent(output, "nothing may follow" if is_end else reason)

    def _spent(self, output: Sequence[int], reason: str) -> _Spent:
        name = self.grammar.kind.value
        return _Spent(f"the {name} can't be followed beyond {len(output)} tokens: {reason}")
