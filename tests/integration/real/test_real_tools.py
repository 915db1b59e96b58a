"""Tool calls of the real model's choice: as strict as asked, with and without speculation."""

import json

import jsonschema
import pytest

from slipstream.client import Client, Mode, SpeculationOptions
from slipstream.core.request.tool_calls import read_tool_calls
from slipstream.core.request.tools import tools_of

pytestmark = pytest.mark.real
FIELDS = {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS]}
SCHEMA |= {"additionalProperties": False}
TOOL = {"name": "get_weather", "description": "get weather", "parameters": SCHEMA}


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


@pytest.mark.usefixtures("real_model")
def test_a_call_of_the_model_s_choice_follows_a_strict_schema_and_no_other():
    """The call is the same with and without speculation; and a text without a call is as ever."""
    strict, loose = (
        {"type": "function", "function": {**TOOL, "strict": at}} for at in (True, False)
    )
    off, forced = SpeculationOptions(mode=Mode.OFF), SpeculationOptions(mode=Mode.FORCED)
    asked = {"max_tokens": 60}
    with Client.embedded("smollm2-135m") as client:
        results = [
            client.generate(ASKED, tools=[given], speculation=how, **asked)
            for given, how in ((strict, off), (strict, forced), (loose, off))
        ]
        plain = [
            client.generate("Boats float.", tools=[given], **asked).token_ids
            for given in (strict, loose)
        ]
    assert results[0].token_ids == results[1].token_ids
    judge = jsonschema.Draft202012Validator(SCHEMA)
    for result, is_valid in zip(results, (True, True, False), strict=True):
        (call,) = read_tool_calls(result, tools_of([strict]))[1]
        assert judge.is_valid(json.loads(call.arguments)) == is_valid
    assert plain[0] == plain[1]
