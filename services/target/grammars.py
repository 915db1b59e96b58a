"""JSON schemas and regular expressions as constraints: all that knows llguidance.

A grammar is compiled once, on any thread, and copied for each session that follows it. What may
follow in an output depends on its tokens alone: a follower goes back and on to those asked about.
Knows no logits, no laws and no caches.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from slipstream.core.errors import InvalidRequest, ModelMismatch, NotBuilt
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.options import MAX_NODES
from slipstream.core.types import Session
from slipstream.text.tokenizer import TextTokenizer

_T = TypeVar("_T")

MAX_COMPILED = 32
"""Grammars that are kept for requests to come."""
_MAX_SENTENCE = 240
_NO_WAY = "NoExtension"
"""How the library's message begins where nothing may follow."""
_JSON = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
}
"""One way to write a value: an open choice of spaces would let a text go on for ever. Without
spaces SmolLM2-135M takes 14% fewer tokens, which are no less likely. Keywords that are not enforced
are refused."""
_LEXER_STATES = 20_000
"""About 40 MB for a grammar."""
_LEXER_FUEL = 100_000
"""About 10 ms of work for a slot."""


class Grammars:
    """Makes constraints for one target. Any thread may use it."""

    def __init__(
        self, tokenizer: TextTokenizer, *, vocab_size: int, stop_token_ids: frozenset[int]
    ) -> None:
        """Raises `ModelMismatch` for a tokenizer that texts can't be followed through, or without
        a token that ends a text."""
        if not stop_token_ids:
            raise ModelMismatch("a model without a stop token can't end a text by its grammar")
        try:
            self._tokenizer = LLTokenizer(
                tokenizer.parts().json.decode(),
                n_vocab=vocab_size,
                eos_token=sorted(stop_token_ids),
            )
        except ValueError as error:
            raise ModelMismatch(
                f"grammars can't follow this tokenizer ({_sentence(str(error))})"
            ) from None
        self._limits = LLParserLimits(
            max_lexer_states=_LEXER_STATES, step_lexer_fuel=_LEXER_FUEL, verbose_errors=False
        )
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()
        self._tells_forced = True

    def force(self, is_on: bool) -> None:
        """Whether followers made from now on tell what is forced; they do unless told otherwise."""
        self._tells_forced = is_on

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled already, so that nothing of it takes long."""
        with self._lock:
            return grammar in self._compiled

    def compile(self, grammar: Grammar) -> None:
        """Have it ready; may take some 100 ms, most of them without the interpreter's lock.

        Raises `InvalidRequest` for what is no such grammar, asks for what can't be enforced, allows
        no text, or is too complex.
        """
        self._matcher(grammar)

    def follower(self, grammar: Grammar, stop_token_ids: frozenset[int]) -> "Follower":
        """A constraint for one session, whose texts end with any of these.

        Raises `InvalidRequest` as `compile` does.
        """
        if not stop_token_ids:
            raise InvalidRequest(f"a {grammar.kind.value} is given, but no stop token to end with")
        self.compile(grammar)
        follower = Follower(grammar, self, self._tokenizer, stop_token_ids)
        follower.tells_forced = self._tells_forced
        return follower

    def matcher(self, grammar: Grammar, *, is_new: bool = False) -> LLMatcher:
        """One at the beginning of a text. Those of one grammar share what has been found out of it,
        and the library's limits on that, unless one `is_new`; those after it share with that one.

        Raises `InvalidRequest` as `compile` does.
        """
        if is_new:
            with self._lock:
                self._compiled.pop(grammar, None)
        return self._matcher(grammar).deep_copy()

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        made = self._made(grammar)
        with self._lock:
            self._compiled[grammar] = made
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return made

    def _made(self, grammar: Grammar) -> LLMatcher:
        name = grammar.kind.value
        try:
            matcher = LLMatcher(self._tokenizer, _source(grammar), limits=self._limits, log_level=0)
        except ValueError as error:
            raise InvalidRequest(f"the {name} can't be followed: {_sentence(str(error))}") from None
        if matcher.is_error():
            raise InvalidRequest(f"the {name} can't be followed: {_sentence(matcher.get_error())}")
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if not trial.is_error():
            return matcher
        reason = _sentence(trial.get_error())
        if reason.startswith(_NO_WAY):
            raise InvalidRequest(f"the {name} allows no text at all")
        raise InvalidRequest(f"the {name} is too complex: {reason}")


class _Spent(Exception):
    """A matcher that goes no further, and why."""


class Follower:
    """`core.constraint.Constraint` by one grammar, for one thread at a time."""

    def __init__(
        self,
        grammar: Grammar,
        grammars: Grammars,
        tokenizer: LLTokenizer,
        stop_token_ids: frozenset[int],
    ) -> None:
        """`grammars` has compiled it, and made the `tokenizer`."""
        self.grammar = grammar
        self.stop_token_ids = stop_token_ids
        self.tells_forced = True
        self._grammars = grammars
        self._matcher = grammars.matcher(grammar)
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
        except InvalidRequest:  # whoever asks for the slot is told
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:MAX_NODES])

    def check(self, output: Sequence[int]) -> None:
        """Raises `InvalidRequest` unless the grammar allows the output, which has not ended."""
        if not self.stop_token_ids.isdisjoint(output):
            raise InvalidRequest("nothing follows a stop token, but the output has one")
        self._tried(self._follow, output)

    def _tried(self, job: Callable[[Sequence[int]], _T], output: Sequence[int]) -> _T:
        """What a job on the output gives. At the library's limits it is done again by a matcher of
        its own: others may have used up what was shared, and whoever goes on elsewhere has none."""
        try:
            return job(output)
        except _Spent:
            self._begin(is_new=True)
        try:
            return job(output)
        except _Spent as error:
            self._begin()  # a matcher that met an error is of no use any more
            raise InvalidRequest(str(error)) from None

    def _begin(self, *, is_new: bool = False) -> None:
        self._matcher = self._grammars.matcher(self.grammar, is_new=is_new)
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
            raise _Spent(
                f"token {num_same + num_read} of the output, {news[num_read]}, does not follow the"
                f" {self.grammar.kind.value}"
            )

    def _require_sound(self, output: Sequence[int]) -> None:
        if self._matcher.is_error():
            reason = _sentence(self._matcher.get_error())
            is_end = reason.startswith(_NO_WAY)
            raise self._spent(output, "nothing may follow" if is_end else reason)

    def _spent(self, output: Sequence[int], reason: str) -> _Spent:
        name = self.grammar.kind.value
        return _Spent(f"the {name} can't be followed beyond {len(output)} tokens: {reason}")


def follower_of(
    grammars: Grammars | None, session: Session, tokens: Sequence[int], known: Follower | None
) -> Follower | None:
    """The constraint of a session with these tokens, `known` if it was that already; None for none.

    Raises `InvalidRequest` for a grammar or an output that can't be followed, `NotBuilt` where none
    can be.
    """
    grammar, stops = session.grammar, session.stop_token_ids
    if grammar is None:
        return None
    if grammars is None:
        raise NotBuilt(f"a {grammar.kind.value} is given, but the target can't follow any")
    if known is None or (known.grammar, known.stop_token_ids) != (grammar, stops):
        known = grammars.follower(grammar, stops)
    known.check(tokens[session.num_prompt_tokens :])
    return known


def _source(grammar: Grammar) -> str:
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    # The schema `true` allows what `{}` does, which has room for options.
    text = "{}" if grammar.text.strip() == "true" else grammar.text
    return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)  # type: ignore[arg-type]


def _sentence(message: str) -> str:
    """What is essential of the library's message, as one line of printable text."""
    lines = message.strip().splitlines() or [""]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (named or lines)[0]
    printable = "".join(char if char.isprintable() else " " for char in line)
    is_long = len(printable) > _MAX_SENTENCE
    return printable[:_MAX_SENTENCE] + "…" if is_long else printable
