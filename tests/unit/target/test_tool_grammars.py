"""Calls that a model begins by itself: free text before them, and then what their schema allows."""

import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slipstream.core.request.tools import Tool, ToolFormat, calls_grammar
from slipstream.text.tokenizer import TextTokenizer
from slipstream.verifying.grammars import Grammars

HERMES, LLAMA3, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA3, ToolFormat.MISTRAL
KEYS = {HERMES: "arguments", MISTRAL: "arguments", LLAMA3: "parameters"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/b"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"enum": ["x", None]}},
}
TOOLS = (Tool("strict", "", json.dumps(SCHEMA), strict=True), Tool("free", "", json.dumps(SCHEMA)))
FREE = [
    *("", "Hello", "<tool", 'say {"name": 1', "a [TOOL", '{"city": 2}', "\n\n \n"),
    "<think>é ✓<think>",
]
ARGUMENTS = {  # the first of these that is not allowed, at the place that is marked
    ("strict", '{"a": 1}'): True,
    ("strict", '{"a":1,"b":null}'): True,
    ("strict", '{"a": 12, "b": "x"}'): True,
    ("strict", '{"a": |"x"}'): False,
    ("strict", "{|}"): False,
    ("strict", '{"a": 1, "b": "|y"}'): False,
    ("strict", '{"a": 1, "|c": 2}'): False,
    ("free", '{"z": [{}], "a": "x"}'): True,
    ("f|oo", "{}"): False,
}
EOS = 0


def made(*tokens):
    """Grammars of a tokenizer of bytes, with these as one token each."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<eos>": EOS} | {letter: at + 1 for at, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.add_tokens([AddedToken(token, special=token[0] == "[") for token in tokens])
    text = TextTokenizer.from_parts(tokenizer.to_str().encode(), "", {})
    size = tokenizer.get_vocab_size()
    return tokenizer, Grammars(text, vocab_size=size, stop_token_ids=frozenset([EOS]))


MADE = {
    "letters": made(),
    "tokens": made("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>"),
}


@pytest.fixture(params=MADE)
def tokenizer(request):
    return MADE[request.param][0]


@pytest.fixture(params=[HERMES, LLAMA3, MISTRAL])
def constraint(request, tokenizer):
    grammars = next(it for other, it in MADE.values() if other is tokenizer)
    compiled = grammars.compile(calls_grammar(TOOLS, request.param)).result()
    constraint = grammars.constraint(compiled, frozenset([EOS]))
    constraint.format = request.param
    return constraint


def call_text(tool_format, name, arguments, before):
    call = f'{{"name": "{name}", "{KEYS[tool_format]}": {arguments}}}'
    return {
        HERMES: f"{before}<tool_call>\n{call}\n</tool_call>",
        MISTRAL: f"{before}[TOOL_CALLS] [{call}]",
        LLAMA3: call,
    }[tool_format]


@pytest.mark.parametrize("text", FREE)
def test_anything_may_follow_while_no_call_has_begun(tokenizer, constraint, text):
    ids = tokenizer.encode(text).ids
    for size in range(len(ids) + 1):
        assert constraint.allowed(ids[:size]) is None
        assert constraint.forced(ids[:size]) == ()


@pytest.mark.parametrize("before", ["", "Well:\n", "<think>hm<think>"])
@pytest.mark.parametrize(("call", "is_allowed"), ARGUMENTS.items(), ids=str)
def test_a_call_follows_the_schema_of_its_tool(tokenizer, constraint, call, is_allowed, before):
    text = call_text(constraint.format, *call, before)
    ids = tokenizer.encode(text.replace("|", "")).ids
    num_right = len(tokenizer.encode(text.partition("|")[0]).ids) if "|" in text else len(ids)
    for size in range(num_right):
        allowed = constraint.allowed(ids[:size])
        assert allowed is None or ids[size] in allowed
    ends = constraint.allowed(ids[:num_right])
    assert (ids[num_right] not in ends) if not is_allowed else (EOS in ends)


def test_what_is_allowed_depends_on_the_output_alone(tokenizer, constraint):
    texts = [call_text(constraint.format, *call, "Well: ").replace("|", "") for call in ARGUMENTS]
    outputs = [
        tokenizer.encode(text).ids for text in (*texts, *FREE, texts[0] + " and " + texts[1])
    ]
    prefixes = [ids[:size] for ids in outputs for size in range(len(ids) + 1)]
    answers = [None if (ids := constraint.allowed(it)) is None else set(ids) for it in prefixes]
    order = list(range(len(prefixes)))
    random.Random(1).shuffle(order)
    for at in order:
        allowed = constraint.allowed(prefixes[at])
        assert (None if allowed is None else set(allowed)) == answers[at]


def test_only_strict_tools_ask_for_it():
    assert calls_grammar(TOOLS[1:], HERMES) is None
    assert calls_grammar(TOOLS, None) is None
    assert calls_grammar((), HERMES) is None
