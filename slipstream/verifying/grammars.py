"""JSON schemas and regular expressions as constraints: compiled, and cached.

A grammar is compiled once, on a thread for that alone, and copied for each session that follows
it: no session waits for the grammars of others.
"""

import json
import re
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from threading import Lock
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from slipstream.core.errors import (
    CapacityError,
    InternalError,
    InvalidRequest,
    ModelMismatch,
    NotBuilt,
)
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.request.schemas import placed_schema
from slipstream.core.request.tools import ToolFormat
from slipstream.core.sequence import TokenSequence
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.grammar_constraint import (
    NO_WAY,
    CompiledGrammar,
    GrammarConstraint,
    one_line,
)

MAX_COMPILED = 32
"""Grammars that are kept for requests to come, beside those that are followed."""
MAX_COMPILING = 16
"""Grammars that may wait for their thread: each takes up to some 300 ms."""
_TRIED_TOKENS = 4
"""Tokens tried of a grammar: an object's many properties show their cost behind its first brace."""
_JSON = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
}
"""One way to write a value: an open choice of spaces would let a text go on for ever. Without
spaces SmolLM2-135M takes 14% fewer tokens, which are no less likely. Keywords that are not enforced
are refused."""
_SPACED = {"item_separator": ", ?", "key_separator": ": ?"}
"""Spaces that models write in calls of their own."""
_OPENINGS = {
    ToolFormat.HERMES: re.compile(rb"(?=<tool_call>)"),
    ToolFormat.LLAMA3: re.compile(rb'\A\s{0,4}(<\|python_tag\|>\s{0,4})?(?=\{\s?"name"\s?:)'),
    ToolFormat.MISTRAL: re.compile(rb"(?=\[TOOL_CALLS\])"),
}
"""Beginnings of a text's first call, at the end of a match."""
_CALLS = {
    ToolFormat.HERMES: "start: (open ws call ws {end})+ TEXT\n{hermes}",
    ToolFormat.LLAMA3: 'start: ws call (ws ";" ws call)* ws\n',
    ToolFormat.MISTRAL: ('start: open ws "[" ws call (ws "," ws call)* ws "]" TEXT\n{mistral}'),
}
_RULES = "TEXT: /(.|\\n)*/\nws: /[ \\n]{0,2}/\n"
_LIMITS = LLParserLimits(max_lexer_states=20_000, step_lexer_fuel=100_000, verbose_errors=False)
"""Limits of the parser: about 40 MB for a grammar, and 10 ms of work for a position."""


class Grammars:
    """Makes constraints for one target. Any thread may use it."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        vocab_size: int,
        stop_token_ids: frozenset[int],
        is_known: bool = False,
    ) -> None:
        """`is_known` if such grammars have been made before: what takes 200 ms then waits
        for the first grammar, or for `prepare`.

        Raises `ModelMismatch` for a tokenizer that texts can't be followed through, or without
        a token that ends a text.
        """
        if not stop_token_ids:
            raise ModelMismatch("a model without a stop token can't end a text by its grammar")
        self._text, self._vocab_size, self._ends = tokenizer, vocab_size, sorted(stop_token_ids)
        if not is_known:
            self.prepare()
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._known: WeakValueDictionary[Grammar, CompiledGrammar] = WeakValueDictionary()
        self._num_compiling = 0
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")

    def prepare(self) -> None:
        """Do what the first grammar takes 200 ms for, with the interpreter's lock: a service, whose
        event loop would wait, does it before it serves."""
        _ = self._tokenizer

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        try:
            return LLTokenizer(
                self._text.parts().json.decode(), n_vocab=self._vocab_size, eos_token=self._ends
            )
        except ValueError as error:
            raise ModelMismatch(
                f"grammars can't follow this tokenizer ({one_line(str(error))})"
            ) from None

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return the compiled grammar if it is cached or in use, else None; at once."""
        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
            return self._known.get(grammar)

    def compile(self, grammar: Grammar) -> "Future[CompiledGrammar]":
        """Return the compiled grammar, at once if it is cached or in use; its users hold it.

        Otherwise it is compiled on the thread for that, in some 100 ms, without the interpreter's
        lock. Raises `CapacityError` where too many wait for that. The future raises
        `InvalidRequest` for what is no such grammar, asks for what can't be enforced, allows no
        text, or is too complex.
        """
        if (compiled := self.find(grammar)) is not None:
            future: Future[CompiledGrammar] = Future()
            future.set_result(compiled)
            return future
        with self._lock:
            if self._num_compiling >= MAX_COMPILING:
                raise CapacityError(
                    f"{MAX_COMPILING} grammars wait to be compiled, the limit; try again later"
                )
            self._num_compiling += 1
        future = self._thread.submit(self._compile, grammar)
        future.add_done_callback(self._compiled)
        return future

    def constraint(
        self, compiled: CompiledGrammar, stop_token_ids: frozenset[int]
    ) -> GrammarConstraint:
        """Return a constraint for one session, whose texts end with any of these tokens.

        Raises `InvalidRequest` where there are none.
        """
        if not stop_token_ids:
            kind = compiled.grammar.kind.value
            raise InvalidRequest(f"a {kind} is given, but no stop token to end with")
        return GrammarConstraint(compiled, self._tokenizer, stop_token_ids)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        compiled = self.find(grammar)
        if compiled is None:
            opening = None
            if grammar.kind is GrammarKind.TOOL_CALLS:
                opening = _OPENINGS[ToolFormat(json.loads(grammar.text)["format"])]
            matcher = self._make_matcher(grammar)
            compiled = CompiledGrammar(grammar, matcher, self._renew, opening)
        with self._lock:
            self._known[grammar] = self._kept[grammar] = compiled
            if len(self._kept) > MAX_COMPILED:
                self._kept.popitem(last=False)
        return compiled

    def _compiled(self, _: "Future[CompiledGrammar]") -> None:
        with self._lock:
            self._num_compiling -= 1

    def _renew(self, compiled: CompiledGrammar) -> None:
        def make() -> None:
            compiled.spare = self._make_matcher(compiled.grammar)

        self._thread.submit(make)

    def _make_matcher(self, grammar: Grammar) -> LLMatcher:
        name = grammar.kind.value
        try:
            matcher = LLMatcher(self._tokenizer, self._source(grammar), limits=_LIMITS, log_level=0)
        except ValueError as error:
            raise InvalidRequest(f"the {name} can't be followed: {one_line(str(error))}") from None
        if matcher.is_error():
            raise InvalidRequest(f"the {name} can't be followed: {one_line(matcher.get_error())}")
        reason = _first_error(matcher.deep_copy())
        if not reason:
            return matcher
        if reason.startswith(NO_WAY):
            raise InvalidRequest(f"the {name} allows no text at all")
        raise InvalidRequest(f"the {name} is too complex: {reason}")

    def _source(self, grammar: Grammar) -> str:
        if grammar.kind is GrammarKind.TOOL_CALLS:
            about = json.loads(grammar.text)
            schema = {"x-guidance": {**_JSON, **_SPACED}, **about["schema"]}
            rules = _CALLS[ToolFormat(about["format"])].format(
                hermes=self._opening("<tool_call>"),
                mistral=self._opening("[TOOL_CALLS]"),
                end=self._literal("</tool_call>"),
            )
            return f"%llguidance {{}}\n{rules}{_RULES}call: %json {json.dumps(schema)}\n"
        if grammar.kind is GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        text = grammar.text
        with suppress(ValueError, RecursionError):  # the library's error has the reason
            value = placed_schema(json.loads(text), "#", "the json-schema", is_typed=True)
            # The schema `true` allows what `{}` does, which has room for options.
            text = json.dumps({} if value is True else value)
        return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)  # type: ignore[arg-type]

    def _opening(self, text: str) -> str:
        literal = self._literal(text)
        if literal.startswith("<"):
            return f"open: TEXT {literal}\n"
        return f"open[lazy]: /(.|\\n)*{re.escape(text)}/\n"

    def _literal(self, text: str) -> str:
        """Return a text as a grammar has it: some are one token, which no text is."""
        ids = self._tokenizer.tokenize_str(text)
        is_token = len(ids) == 1 and self._tokenizer.is_special_token(ids[0])
        return f"<[{ids[0]}]>" if is_token else json.dumps(text)


def constraint_of(
    grammars: Grammars | None, sequence: TokenSequence, known: GrammarConstraint | None
) -> GrammarConstraint | None:
    """Return the constraint of a sequence, `known` if it was that already; None for none.

    Raises `InvalidRequest` for a grammar or an output that can't be followed, `NotBuilt` where none
    can be.
    """
    session = sequence.session
    grammar, stops = session.grammar, session.stop_token_ids
    if grammar is None:
        return None
    if grammars is None:
        raise NotBuilt(f"a {grammar.kind.value} is given, but the target can't follow any")
    if known is None or (known.grammar, known.stop_token_ids) != (grammar, stops):
        compiled = grammars.find(grammar)
        if compiled is None:  # never done here: other sessions would wait for it
            raise InternalError(f"the {grammar.kind.value} is followed before it was compiled")
        known = grammars.constraint(compiled, stops)
    known.check(sequence.tokens[session.num_prompt_tokens :])
    return known


def _first_error(matcher: LLMatcher) -> str:
    """Return why a matcher does not get through the first tokens of a text; "" where it does."""
    for _ in range(_TRIED_TOKENS):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            return one_line(matcher.get_error())
        ids = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if not len(ids) or matcher.is_stopped():
            break
        matcher.try_consume_tokens([int(ids[-1])])
    return ""
