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
QUESTIONS = {
    "get_weather": ("in Paris in celsius", "in Berne"),
    "book_table": ("for two on friday", "for Ada, five people"),
    "convert": ("10 dollars to euros", "1.5 kg to pounds"),
    "set_alarm": ("at noon on weekdays", "for 7:30"),
    "search": ("papers on speculation", "open cafes"),
}
"""Of an odd and an even length: see `called`."""
LAWS = (SamplingParams(), SamplingParams(temperature=1.0, seed=11))


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


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.05, seed=3)])
def test_a_call_of_the_model_s_choice_follows_a_strict_schema_and_no_other(client, sampling):
    """The call is the same with and without speculation; and a text without a call is as ever."""
    about = tool("get_weather")
    strict = {**about, "function": {**about["function"], "strict": True}}
    asked = {"max_tokens": 60, "sampling": sampling}
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


def called(client, name, question, law, mode):
    """The answer's tokens, and the call in it; half of the questions may choose any tool."""
    choice = {"type": "function", "function": {"name": name}} if len(question) % 2 else "required"
    said = [{"role": "user", "content": f"{name.replace('_', ' ')} {question}"}]
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 160, "sampling": law}
    result = client.generate(said, **asked, speculation=SpeculationOptions(mode=mode))
    text, (call,) = read_tool_calls(result, tools_of(TOOLS), is_forced=True)
    assert text == ""
    if choice != "required":
        assert call.name == name
    return result.token_ids, call


@pytest.mark.parametrize("law", LAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_forced_call_is_valid_and_the_same_without_speculation(client, name, law):
    """Every tool under both laws, with each of its questions once; all choices meet all laws."""
    question = QUESTIONS[name][([*FIELDS].index(name) + LAWS.index(law)) % 2]
    tokens, call = called(client, name, question, law, Mode.FORCED)
    jsonschema.validate(json.loads(call.arguments), schema(call.name))
    plain, _ = called(client, name, question, law, Mode.OFF)
    assert tokens == plain
