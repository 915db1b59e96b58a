"""Forced tool calls on the real model: always valid, and the same with and without speculation."""

import json

import jsonschema
import pytest

from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions
from slipstream.core.request.tool_calls import read_tool_calls
from slipstream.core.request.tools import tools_of

pytestmark = pytest.mark.real

TEXT, COUNT = {"type": "string", "maxLength": 24}, {"type": "integer", "minimum": 0, "maximum": 99}
DAY = {"enum": ["monday", "tuesday", "wednesday", "thursday", "friday"]}
DAYS = {"type": "array", "items": DAY, "maxItems": 3}
FIELDS = {
    "get_weather": {"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "book_table": {"name": TEXT, "people": COUNT, "day": DAY},
    "convert": {"amount": {"type": "number"}, "source": TEXT, "target": TEXT},
    "set_alarm": {"hour": COUNT, "minute": COUNT, "days": DAYS},
    "search": {"query": TEXT, "filters": {"$ref": "#/$defs/filters"}},
}
FILTERS = {"type": "object", "properties": {"year": COUNT, "is_open": {"type": "boolean"}}}
FILTERS |= {"additionalProperties": False}
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=11)
CALLS = [
    ("get_weather", "in Paris in celsius", True, GREEDY),
    ("book_table", "for Ada, five people", False, GREEDY),
    ("convert", "10 dollars to euros", True, SAMPLED),
    ("set_alarm", "for 7:30", False, SAMPLED),
    ("search", "papers on speculation", True, SAMPLED),
]
"""Tools with a question, whether the request names the tool, and how tokens are drawn."""


def schema(name):
    fields = FIELDS[name]
    defs = {"$defs": {"filters": FILTERS}} if name == "search" else {}
    strict = {"required": [*fields], "additionalProperties": False}
    return {"type": "object", "properties": fields, **strict, **defs}


def tool(name):
    about = {"name": name, "description": name.replace("_", " "), "parameters": schema(name)}
    return {"type": "function", "function": about}


TOOLS = [tool(name) for name in FIELDS]


def earlier(city, number):
    """A turn whose call has not all that the schema asks for."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": f"call{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


IMITATED = [message for number, city in enumerate(("Berlin", "Madrid", "Vienna"))
            for message in earlier(city, number)]  # fmt: skip
ASKED = [*IMITATED, {"role": "user", "content": "What is the weather in Oslo?"}]


def test_a_call_of_the_model_s_choice_follows_a_strict_schema_and_no_other(client):
    """The call is the same with and without speculation; and a text without a call is as ever."""
    about = tool("get_weather")
    strict = {**about, "function": {**about["function"], "strict": True}}
    asked = {"max_tokens": 60}
    off, forced = SpeculationOptions(mode=Mode.OFF), SpeculationOptions(mode=Mode.FORCED)
    results = [
        client.generate(ASKED, tools=[given], speculation=how, **asked)
        for given, how in ((strict, off), (strict, forced), (about, off))
    ]
    assert results[0].token_ids == results[1].token_ids
    judge = jsonschema.Draft202012Validator(schema("get_weather"))
    for result, is_valid in zip(results, (True, True, False), strict=True):
        (call,) = read_tool_calls(result, tools_of([strict]))[1]
        assert judge.is_valid(json.loads(call.arguments)) == is_valid
    plain = [
        client.generate("Boats float.", tools=[given], **asked).token_ids
        for given in (strict, about)
    ]
    assert plain[0] == plain[1]


@pytest.fixture(scope="module")
def client(real_model):
    with Client.embedded(real_model) as client:
        yield client


@pytest.mark.parametrize(("name", "question", "is_named", "sampling"), CALLS)
def test_a_forced_call_is_valid_and_the_same_without_speculation(
    client, name, question, is_named, sampling
):
    choice = {"type": "function", "function": {"name": name}} if is_named else "required"
    said = [{"role": "user", "content": f"{name.replace('_', ' ')} {question}"}]
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 160, "sampling": sampling}
    forced, plain = (
        client.generate(said, **asked, speculation=SpeculationOptions(mode=mode))
        for mode in (Mode.FORCED, Mode.OFF)
    )
    text, (call,) = read_tool_calls(forced, tools_of(TOOLS), is_forced=True)
    assert text == ""
    assert call.name == name or not is_named
    jsonschema.validate(json.loads(call.arguments), schema(call.name))
    assert forced.token_ids == plain.token_ids
