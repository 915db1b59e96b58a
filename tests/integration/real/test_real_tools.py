"""Forced tool calls on the real model: always valid, and the same with and without speculation."""

import json

import jsonschema
import pytest

from slipstream.client import Client, Mode, SamplingParams, SpeculationOptions
from slipstream.core.request.tools import tools_of
from slipstream.core.text.tool_calls import read_tool_calls

pytestmark = pytest.mark.real

TEXT, COUNT = {"type": "string", "maxLength": 24}, {"type": "integer", "minimum": 0, "maximum": 99}
DAY = {"enum": ["monday", "tuesday", "wednesday", "thursday", "friday"]}
DAYS = {"type": "array", "items": DAY, "maxItems": 3}
FIELDS = {
    "get_weather": {"city": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "book_table": {"name": TEXT, "people": COUNT, "day": DAY},
    "convert": {"amount": {"type": "number"}, "source": TEXT, "target": TEXT},
    "set_alarm": {
        "hour": COUNT,
        "minute": COUNT,
        "days": {"type": "array", "items": DAY, "maxItems": 3},
    },
    "search": {"query": TEXT, "filters": {"$ref": "#/$defs/filters"}},
}
FILTERS = {"type": "object", "properties": {"year": COUNT, "is_open": {"type": "boolean"}}}
FILTERS |= {"additionalProperties": False}
QUESTIONS = {
    "get_weather": (
        "in Paris in celsius",
        "for Tokyo",
        "in New York in fahrenheit",
        "today in Rome",
    ),
    "book_table": ("for two on friday", "for Ada, five people", "on monday for 3", "for my team"),
    "convert": ("10 dollars to euros", "3 miles to km", "100 yen to pounds", "1.5 kg to pounds"),
    "set_alarm": ("for 7:30", "at noon on weekdays", "at 6 on friday", "for 22:15 today"),
    "search": ("papers on speculation", "open cafes", "films of 1999", "news of the day"),
}
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


@pytest.fixture(scope="module")
def client(real_model):
    with Client.embedded(real_model) as client:
        yield client


def called(client, name, question, law, mode):
    """The answer's tokens, and the call in it; half of the questions may choose any tool."""
    choice = {"type": "function", "function": {"name": name}} if len(question) % 2 else "required"
    result = client.generate(
        [{"role": "user", "content": f"{name.replace('_', ' ')} {question}"}],
        tools=TOOLS,
        tool_choice=choice,
        max_tokens=160,
        sampling=law,
        speculation=SpeculationOptions(mode=mode),
    )
    text, (call,) = read_tool_calls(result, tools_of(TOOLS), is_forced=True)
    assert text == ""
    if choice != "required":
        assert call.name == name
    return result.token_ids, call


@pytest.mark.parametrize("law", LAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_forced_call_is_valid_and_the_same_without_speculation(client, name, law):
    for question in QUESTIONS[name]:
        tokens, call = called(client, name, question, law, Mode.FORCED)
        jsonschema.validate(json.loads(call.arguments), schema(call.name))
        plain, _ = called(client, name, question, law, Mode.OFF)
        assert tokens == plain
