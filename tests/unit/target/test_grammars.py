"""What may follow an output is a function of its tokens, and the texts are those of the grammar."""

import itertools
import json
import random
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.core.grammar import MAX_GRAMMAR_BYTES
from slipstream.verifying.grammars import Grammars
from support.models import grammar_texts
from support.models.grammar_texts import EOS, STOPS, TEXT, VOCAB, grammars, ids, regex, schema
from support.models.random_schemas import draw_schemas

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "kind": {"enum": ["alpha", "alphabet", None]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
WIDE = {"type": "object", "properties": {f"p{at}": {"type": "integer"} for at in range(1900)}}


@pytest.fixture(scope="module")
def made():
    return grammars()


def constraint_for(made, grammar, stops):
    return made.constraint(made.compile(grammar).result(), stops)


def texts_of(constraint, limit):
    """Every text that may end within so many tokens, by going all the ways that are allowed."""
    found, open_ = set(), [[]]
    while open_:
        output = open_.pop()
        for token in constraint.allowed(output).tolist():
            if token == EOS:
                found.add(TEXT.decode(output))
            elif len(output) < limit:
                open_.append([*output, token])
    return found


@pytest.mark.parametrize("expression", ["(ab|a)c{1,2}", "[ab]*c?", "a(b|bc)c?", "(a|b)(a|c)?(b)?"])
def test_the_texts_that_may_end_are_those_that_match(made, expression):
    found = texts_of(constraint_for(made, regex(expression), STOPS), 4)
    words = ("".join(word) for size in range(5) for word in itertools.product("abc", repeat=size))
    assert found == {word for word in words if re.fullmatch(expression, word)}


BIT = {"enum": [0, 1]}


@pytest.mark.parametrize(
    "written",
    [
        BIT | dict.fromkeys(("type", "const", "items", "properties", "required", "$ref", "anyOf"))
        | {"type": "integer"},
        {"$ref": "#b", "$defs": {"b": {"$anchor": "b", **BIT}}},
        {"$dynamicRef": "#b", "$defs": {"b": {"$dynamicAnchor": "b", **BIT}}},
        {"$id": "http://x/y", "$ref": "z", "$defs": {"b": {"$id": "z", **BIT}}},
        {"$ref": "#/$defs/a b", "$defs": {"a b": BIT}},
    ],
)  # fmt: skip
def test_a_schema_of_any_form_allows_what_its_plain_form_does(made, written):
    found = texts_of(constraint_for(made, schema(written), STOPS), 2)
    assert found == texts_of(constraint_for(made, schema(BIT), STOPS), 2) == {"0", "1"}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([schema(PERSON), regex("(foo|fo{2,4}d)+(, x)*")]))
def test_masks_do_not_depend_on_how_an_output_was_come_to(seed, grammar):
    made, rng = grammars(), random.Random(seed)
    output = grammar_texts.drawn(constraint_for(made, grammar, STOPS), seed, 60)
    fresh = [
        constraint_for(made, grammar, STOPS).allowed(output[:count]).tolist()
        for count in range(len(output) + 1)
    ]
    wanderer = constraint_for(made, grammar, STOPS)
    for _ in range(40):
        count = rng.randrange(len(output) + 1)
        if rng.random() < 0.3:
            wanderer.forced(output[:count])
        if rng.random() < 0.3:  # what is not allowed leaves no trace
            with pytest.raises(InvalidRequest, match=r"does not follow|nothing follows"):
                wanderer.check([*output[:count], 1])
        assert wanderer.allowed(output[:count]).tolist() == fresh[count]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_forced_tokens_may_follow_one_after_the_other(seed):
    constraint = constraint_for(grammars(), schema(PERSON), STOPS)
    output = grammar_texts.drawn(constraint, seed, 60)
    at = random.Random(seed).randrange(len(output) + 1)
    forced = constraint.forced(output[:at])
    for count, token in enumerate(forced):
        assert token in constraint.allowed([*output[:at], *forced[:count]]).tolist()


def test_what_can_be_nothing_else_is_forced(made):
    constraint = constraint_for(made, regex("hello (world|moon)"), STOPS)
    assert TEXT.decode(constraint.forced([])) == "hello "
    assert TEXT.decode(constraint.forced(ids("hello m"))) == "oon"
    assert constraint.forced(ids("hello moon")) == ()
    assert constraint.forced([*ids("hello moon"), EOS]) == ()
    assert constraint.forced(ids("goodbye")) == ()


def test_stop_tokens_are_those_of_the_session(made):
    other = ids("z")[0]
    constraint = constraint_for(made, regex("az?"), frozenset({other, 2}))
    assert other not in constraint.allowed([]).tolist()
    assert constraint.allowed(ids("a")).tolist() == sorted([2, other])
    assert constraint.allowed([*ids("a"), other]).tolist() == sorted([2, other])
    with pytest.raises(InvalidRequest, match="no stop token"):
        constraint_for(made, regex("a"), frozenset())


def test_special_tokens_are_in_no_text(made):
    for grammar in (regex("(.|\n)*"), regex("<[|](end|user)[|]>"), schema({"type": "string"})):
        constraint = constraint_for(made, grammar, STOPS)
        for output in ([], ids('"a'), ids("<|e")):
            try:
                allowed = constraint.allowed(output).tolist()
            except InvalidRequest:
                continue
            assert not {token for token in allowed if token < grammar_texts.NUM_SPECIAL} - {EOS}


def test_ids_behind_the_tokenizers_own_are_never_allowed():
    padded = Grammars(TEXT, vocab_size=VOCAB + 61, stop_token_ids=STOPS)
    assert max(constraint_for(padded, regex("(.|\n)*"), STOPS).allowed([]).tolist()) < VOCAB


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_every_text_by_a_schema_is_valid_and_ends_by_itself(made, number):
    case = draw_schemas(60, 5)[number]
    constraint = constraint_for(made, schema(case.schema), STOPS)
    for seed in range(4):
        output = grammar_texts.drawn(constraint, seed, case.longest + 1)
        assert output[-1] == EOS
        value = json.loads(TEXT.decode(output))
        jsonschema.validate(value, case.schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (regex("[a"), "unclosed character class"),
        (regex("a(?=b)"), "look-around"),
        (regex("(" * 400 + "a" + ")" * 400), "nested"),
        (regex(r"[^\s\S]"), "allows no text at all"),
        (regex("\ud800"), "surrogates"),
        (schema("{"), "EOF"),
        (schema("[]"), "object"),
        (schema({"not": {"type": "string"}}), "Unimplemented keys"),
        (schema({"not": {}, "x-guidance": {"lenient": True}}), "Unimplemented keys"),
        (schema({"type": "banana\x07\x1b[31m"}), "Invalid type"),
        (schema({"type": "integer", "minimum": 5, "maximum": 1}), "minimum"),
        (schema({"$ref": "http://example.com/schema"}), "Resource"),
        (schema({"$ref": "#"}), "allows no text at all"),
        (schema('{"items":' * 3000 + "{}" + "}" * 3000), "recursion"),
        (schema({"type": "x" * 60_000}), "Invalid type"),
        (schema(WIDE), "too complex: .*max is 2000"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_short_printable_sentence(made, grammar, reason):
    with pytest.raises(InvalidRequest, match=reason) as refused:
        constraint_for(made, grammar, STOPS)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400
    assert made.find(grammar) is None


@pytest.mark.parametrize("size", [0, MAX_GRAMMAR_BYTES + 1])
def test_grammars_have_bounds(size):
    with pytest.raises(InvalidRequest, match=f"{size} bytes"):
        regex("a" * size)


def test_the_longest_grammar_is_followed(made):
    constraint = constraint_for(made, regex("ab" * (MAX_GRAMMAR_BYTES // 2)), STOPS)
    assert constraint.allowed([]).tolist() == ids("a")
    assert 0 < len(constraint.forced([])) < 200


def test_the_budget_that_others_used_up_of_a_grammar_is_taken_from_no_session(made):
    grammar = regex("(.*a.{300}){200}b")
    hungry, modest = constraint_for(made, grammar, STOPS), constraint_for(made, grammar, STOPS)
    expected = modest.allowed([]).tolist()
    with pytest.raises(InvalidRequest, match="beyond"):
        for count in range(0, 4000, 40):
            hungry.allowed(ids("a" * count))
    made._thread.submit(lambda: None).result()  # the matcher in place of the used one is made
    assert modest.allowed(ids("a")).tolist() == expected
    assert modest.allowed([]).tolist() == expected
    assert constraint_for(made, grammar, STOPS).allowed([]).tolist() == expected


def test_a_model_without_a_stop_token_follows_no_grammar():
    with pytest.raises(ModelMismatch, match="stop token"):
        Grammars(TEXT, vocab_size=VOCAB, stop_token_ids=frozenset())
