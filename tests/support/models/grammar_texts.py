"""Grammars over a tokenizer of bytes, and texts that follow them, without a model."""

import json
import random

from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.verifying.grammar_constraint import GrammarConstraint
from slipstream.verifying.grammars import Grammars
from support.models.tiny_checkpoint import byte_tokenizer, text_tokenizer

EOS = 0
STOPS = frozenset({EOS})
VOCAB = 259
NUM_SPECIAL = 3
TEXT = text_tokenizer(byte_tokenizer())


def grammars() -> Grammars:
    return Grammars(TEXT, vocab_size=VOCAB, stop_token_ids=STOPS)


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, value if isinstance(value, str) else json.dumps(value))


def ids(text: str) -> list[int]:
    return TEXT.encode(text, add_special_tokens=False)


def drawn(constraint: GrammarConstraint, seed: int, limit: int) -> list[int]:
    """Tokens drawn evenly from what is allowed, up to the stop token or the limit."""
    rng, output = random.Random(seed), []
    while len(output) < limit and EOS not in output:
        output.append(rng.choice(constraint.allowed(output).tolist()))
    return output
