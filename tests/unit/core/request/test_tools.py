"""Tools and the choice of one: what can be asked for, and the schema of a forced call."""

import json
from dataclasses import replace

import jsonschema
import pytest

from slipstream.core.errors import InvalidRequest
from slipstream.core.request import tools
from slipstream.core.request.tools import Tool, forced_tools, tools_of

PLACE = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/point"}, "next": {"$ref": "#"}},
    "required": ["at"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
F, G = Tool("f", "does f", json.dumps(PLACE)), Tool("g")


def named(name):
    return {"type": "function", "function": {"name": name}}


def test_tools_are_as_openai_writes_them():
    written = {"name": "f", "description": "does f", "parameters": PLACE, "strict": True}
    assert tools_of([{"type": "function", "function": written}, G]) == (replace(F, strict=True), G)
    for name in ("g", "files.read", "mcp:a/b-c_d", "x" * 128):
        assert tools_of([named(name)]) == (Tool(name),)


NO_FUNCTIONS = [{}, [], {"type": "web_search"}, named("f") | {"more": 1}, {"type": "function"}]
NO_NAMES = ["", "a b", "x" * 129, "f(", 5]
BAD = [(tool, "a tool must have the type function") for tool in NO_FUNCTIONS]
BAD += [(named(name), "1 to 128 letters, digits or any of") for name in NO_NAMES]


@pytest.mark.parametrize(("tool", "reason"), BAD)
def test_what_is_no_function_or_has_no_short_word_for_a_name_is_refused(tool, reason):
    with pytest.raises(InvalidRequest, match=reason):
        tools_of([tool])


def test_schemas_of_tools_are_objects_of_bounded_size():
    for parameters in ("[]", "{", "3"):
        with pytest.raises(InvalidRequest, match="schema of tool f must be a JSON object"):
            Tool("f", "", parameters)
    with pytest.raises(InvalidRequest, match="the schema of tool f must have the type object"):
        tools.call_schema([Tool("f", "", '{"type": ["array", "null"]}')])
    with pytest.raises(InvalidRequest, match=f"at most {tools.MAX_TOOL_BYTES} fit"):
        Tool("f", "x" * tools.MAX_TOOL_BYTES)


def test_tools_are_few_and_have_names_of_their_own():
    most = tools.MAX_TOOLS
    with pytest.raises(InvalidRequest, match=f"tools has {most + 1} functions, but at most {most}"):
        tools.check_tools([Tool(f"f{number}") for number in range(most + 1)])
    with pytest.raises(InvalidRequest, match="tools has two named f"):
        tools.check_tools([F, Tool("f")])


def test_a_choice_forces_any_tool_one_or_none():
    assert forced_tools((F, G), "auto") == forced_tools((F, G), "none") == ()
    assert forced_tools((F, G), "required") == (F, G)
    assert forced_tools((F, G), named("g")) == (G,)
    with pytest.raises(InvalidRequest, match="there are no tools"):
        forced_tools((), "required")
    with pytest.raises(InvalidRequest, match="names 'h', but there is no such tool"):
        forced_tools((F,), named("h"))
    for choice in ("sometimes", {}, {"type": "allowed_tools"}, 3):
        with pytest.raises(InvalidRequest, match="must be auto, none, required, or an object"):
            forced_tools((F,), choice)


@pytest.mark.parametrize(
    ("call", "is_valid"),
    [
        ({"name": "f", "arguments": {"at": {"x": 1}}}, True),
        ({"name": "f", "arguments": {"at": {"x": 1}, "next": {"at": {"x": 2}}}}, True),
        ({"name": "g", "arguments": {}}, True),
        ({"name": "f", "arguments": {"at": {"x": "1"}}}, False),
        ({"name": "f", "arguments": {"at": {}, "next": {"at": {"x": "2"}}}}, False),
        ({"name": "f", "arguments": {}}, False),
        ({"name": "i", "arguments": {}}, False),
        ({"name": "g", "arguments": {}, "more": 1}, False),
        ({"name": "h", "arguments": {}}, True),
        ({"name": "h", "arguments": "{}"}, False),
        ({"name": "g"}, False),
    ],
)
def test_a_forced_call_follows_the_schema_of_its_tool_with_its_own_references(call, is_valid):
    judge = jsonschema.Draft202012Validator(tools.call_schema((F, G, Tool("h", "", "{}"))))
    assert judge.is_valid(call) == is_valid
