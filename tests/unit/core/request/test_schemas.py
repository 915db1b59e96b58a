"""Schemas at a place of another one: they mean what they did, and data in them is untouched."""

import json

import jsonschema
import pytest
from referencing import Registry

from slipstream.core.errors import InvalidRequest
from slipstream.core.request.schemas import placed_schema
from slipstream.core.request.tools import Tool, call_schema

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
DATA = [
    *({"$ref": "#/a"}, {"$ref": "#", "$id": "x", "$anchor": "y", "enum": None}),
    *([{"$dynamicRef": "#x", "properties": None}], {"properties": {"a": {"$ref": "#/nowhere"}}}),
    *(None, [None, {"type": None}]),
]
VALUES = [1, "x", None, {}, [], [1], ["x"], {"a": 1}, {"a": "x"}, {"a": {"a": 1}}, {"a": None}]
VALUES += [{"a": {"a": "x"}}, {"$ref": 1}, {"$ref": "x"}, {"enum": 1}, {"enum": "x"}, *DATA]
REFERENCES = {
    "a definition": {"$ref": "#/$defs/n", "$defs": {"n": INTEGER}},
    "an escaped name": {"$ref": "#/$defs/n~1~0%20m", "$defs": {"n/~ m": INTEGER}},
    "a space that is not escaped": {"$ref": "#/$defs/n m", "$defs": {"n m": INTEGER}},
    "an older definition": {"$ref": "#/definitions/n", "definitions": {"n": INTEGER}},
    "an item of a list": {"$ref": "#/anyOf/1", "anyOf": [TEXT, INTEGER]},
    "a place of no keyword": {"$ref": "#/more/n", "more": {"n": {"$ref": "#/more/m"}, "m": TEXT}},
    "itself": {"properties": {"a": {"anyOf": [INTEGER, {"$ref": "#"}]}}, "type": "object"},
    "an anchor": {"$ref": "#n", "$defs": {"q": {"$anchor": "n", "type": "integer"}}},
    "a dynamic anchor": {"$dynamicRef": "#n", "$defs": {"q": {"$dynamicAnchor": "n", **INTEGER}}},
    "a plain anchor, dynamically": {"$dynamicRef": "#n", "$defs": {"q": {"$anchor": "n", **TEXT}}},
    "its own URI": {"$id": "http://x/y", "$ref": "http://x/y#/$defs/n", "$defs": {"n": INTEGER}},
    "a relative URI": {"$id": "http://x/y", "$ref": "z", "$defs": {"n": {"$id": "z", **INTEGER}}},
    "a part of another resource": {
        "$id": "http://x/y",
        "$ref": "z#n",
        "$defs": {"n": {"$id": "z", "$defs": {"m": {"$anchor": "n", **INTEGER}}}},
    },
    "a part of its own resource": {
        "$ref": "#/$defs/r",
        "$defs": {
            "n": TEXT,
            "r": {"$id": "http://x/r", "$ref": "#/$defs/n", "$defs": {"n": INTEGER}},
        },
    },
    "a URN": {"$id": "urn:x:y", "$ref": "#/$defs/n", "$defs": {"n": INTEGER}},
    "a property named $ref": {"properties": {"$ref": INTEGER, "enum": {"$ref": "#/$defs/n"}}}
    | {"$defs": {"n": INTEGER}},
}
ONE = ("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "not")
ONE += ("unevaluatedItems", "contains")
HOLDERS = {key: lambda at, key=key: {key: at} for key in ONE} | {
    "properties": lambda at: {"properties": {"a": at}},
    "properties of a property": lambda at: {"properties": {"a": {"properties": {"a": at}}}},
    "patternProperties": lambda at: {"patternProperties": {"^a": at}},
    "dependentSchemas": lambda at: {"dependentSchemas": {"a": at}},
    "prefixItems": lambda at: {"prefixItems": [at]},
    "anyOf": lambda at: {"anyOf": [{"const": "x"}, at]},
    "oneOf": lambda at: {"oneOf": [{"const": "x"}, at]},
    "allOf": lambda at: {"allOf": [at]},
    "if": lambda at: {"if": at, "else": False},
    "then": lambda at: {"if": True, "then": at},
    "else": lambda at: {"if": False, "else": at},
}


def judged(schema):
    """Which of the values a schema allows."""
    judge = jsonschema.Draft202012Validator(schema, registry=Registry())
    return [judge.is_valid(value) for value in VALUES]


def as_arguments(schema):
    """Which of the values a schema allows where it is at the place of a tool's."""
    placed = placed_schema(schema, "#/$defs/tool1", "the schema of tool g")
    return judged({"$ref": "#/$defs/tool1", "$defs": {"tool1": placed}})


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_means_the_same_at_another_place(name):
    schema = REFERENCES[name]
    allowed = judged(schema)
    assert len(set(allowed)) == 2
    assert as_arguments(schema) == allowed == judged(placed_schema(schema, "#", "it"))


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_position_of_a_schema_may_have_references(holder):
    """And the keywords around it that are null change nothing."""
    held = HOLDERS[holder]({"$ref": "#/$defs/n", "enum": None, "items": None, "pattern": None})
    allowed = judged(HOLDERS[holder](INTEGER))
    assert as_arguments({**held, "$defs": {"n": INTEGER}, "required": None}) == allowed


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    ("keyword", "data"), [*zip(["const", "enum", "default", "examples"] * 2, DATA, strict=False)]
)
def test_data_in_schemas_is_untouched(holder, keyword, data):
    data = [data] if keyword in ("enum", "examples") else data
    schema = HOLDERS[holder]({keyword: data, "properties": {keyword: {"enum": [data]}}})
    assert placed_schema(schema, "#/$defs/t", "it") == schema
    assert as_arguments(schema) == judged(schema)


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"type": "integer", "const": None}, INTEGER),
        ({"type": ["integer", "null"], "const": None}, {"const": None}),
        ({"type": "null", "const": None}, {"const": None}),
        ({"type": None, "const": None, "$ref": None, "$defs": None}, {"const": None}),
    ],
)
def test_a_null_const_is_data_where_the_type_allows_null(schema, plain):
    assert as_arguments(schema) == judged(plain)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"$ref": "#/$defs/n"}, "$ref '#/$defs/n' at #: leads to no schema in it"),
        ({"anyOf": [{"$ref": "#n"}]}, "$ref '#n' at #/anyOf/0: leads to no schema"),
        ({"$ref": "#/anyOf/7", "anyOf": [True]}, "leads to no schema"),
        ({"$ref": "http://x/y#/a"}, "$ref 'http://x/y#/a' at #: leads to no schema"),
        ({"properties": {"a/b": {"$dynamicRef": "#n"}}}, "$dynamicRef '#n' at #/properties/a~1b"),
        (
            {
                "$dynamicRef": "#n",
                "$dynamicAnchor": "n",
                "$defs": {"m": {"$id": "http://x/m", "$dynamicAnchor": "n"}},
            },
            "$dynamicRef '#n' at #: depends on where it is read from",
        ),
        ({"$ref": "#", "$dynamicRef": "#"}, "at #: is beside another reference"),
    ],
)
def test_a_reference_that_can_not_be_followed_is_refused_with_its_tool_and_place(schema, sentence):
    with pytest.raises(InvalidRequest) as refused:
        as_arguments(schema)
    assert str(refused.value).startswith("the schema of tool g has $")
    assert sentence in str(refused.value)


def test_an_older_draft_has_its_own_keyword_for_uris():
    parts = {"a": {"id": "#n", **INTEGER}, "b": {"id": "http://x/y", "$ref": "#/c", "c": TEXT}}
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "definitions": parts}
    placed = placed_schema({**schema, "$ref": "#n"}, "#/$defs/t", "it")
    assert placed["$ref"] == "#/$defs/t/definitions/a"
    other = {"$ref": "#/$defs/t/definitions/b/c", "c": TEXT}
    assert placed["definitions"] == {"a": INTEGER, "b": other}


def test_two_tools_may_have_schemas_of_one_uri():
    one, other = (
        {"$id": "http://x/y", "properties": {"a": {"$ref": "#n"}}, "$defs": {"q": at}}
        for at in (INTEGER, TEXT)
    )
    for schema in (one, other):
        schema["$defs"]["q"] = {**schema["$defs"]["q"], "$anchor": "n"}
    tools = [Tool(name, "", json.dumps(at)) for name, at in (("f", one), ("g", other))]
    judge = jsonschema.Draft202012Validator(call_schema(tools), registry=Registry())
    calls = [{"name": name, "arguments": {"a": value}} for name in "fg" for value in (1, "x")]
    assert [judge.is_valid(call) for call in calls] == [True, False, False, True]


def test_counts_may_be_written_with_a_point_and_data_stays_as_it_is():
    counts = {"minItems": 2.0, "maxProperties": 2.5, "const": {"minItems": 2.0}}
    placed = placed_schema(counts, "#", "it")
    assert json.dumps(placed) == json.dumps({**counts, "minItems": 2})


def test_keywords_of_one_type_give_a_schema_its_type_where_that_is_asked_for():
    parts = {"a": {"pattern": "x"}, "b": {"items": {"minimum": -(2**63)}}, "c": {"enum": [1]}}
    number = {"type": ["number"], "minimum": 1024 - 2**63}
    typed = {"a": {"type": ["string"], "pattern": "x"}, "c": {"enum": [1]}}
    typed |= {"b": {"type": ["array"], "items": number}}
    placed = placed_schema({"properties": parts, "required": ["a"]}, "#", "it", is_typed=True)
    assert placed == {"type": ["object"], "properties": typed, "required": ["a"]}
    for given in ({}, {"type": "null", "properties": {}}, {"anyOf": [{}], "required": []}):
        assert placed_schema(given, "#", "it", is_typed=True) == given


def test_a_schema_that_is_nested_too_deeply_is_refused():
    schema = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(InvalidRequest, match="it is nested too deeply"):
        placed_schema(schema, "#", "it")


@pytest.mark.parametrize(
    ("keyword", "silent", "telling"),
    [
        ("uniqueItems", False, True),
        ("propertyNames", {"type": "string"}, {"maxLength": 1}),
        ("unevaluatedProperties", True, False),
        ("dependentRequired", {}, {"a": ["b"]}),
        ("format", "path", "date"),
    ],
)
def test_keywords_that_say_nothing_are_left_out(keyword, silent, telling):
    data = {"const": {keyword: silent}}
    assert placed_schema({keyword: silent, **data}, "#", "it") == data
    assert placed_schema({keyword: telling}, "#", "it") == {keyword: telling}
