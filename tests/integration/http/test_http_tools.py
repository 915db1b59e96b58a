"""Tools, several answers and the newer API of the HTTP front, with OpenAI's client and an agent."""

import json
from enum import Enum

import pytest
from pydantic import BaseModel

from slipstream.client import SamplingParams
from support.services.http_front import HELLO, async_client_of, chat, error_in, post

COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}}
COLOUR |= {"required": ["colour"], "additionalProperties": False}
PAINT = {"name": "paint", "description": "Paints a wall.", "parameters": COLOUR}
TOOLS = [
    {"type": "function", "function": PAINT},
    {"type": "function", "function": {"name": "stop"}},
]
NAMED = {"type": "function", "function": {"name": "paint"}}
FORCED = {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60, "seed": 3}


def pieces(stream):
    """Text, calls by index and the reason of a streamed chat."""
    text, calls, reason = "", {}, None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                known = calls.setdefault(call.index, ["", "", ""])
                known[0] += call.id or ""
                known[1] += call.function.name or ""
                known[2] += call.function.arguments
            reason = choice.finish_reason or reason
    return text, calls, reason


def test_a_forced_call_has_the_arguments_that_its_schema_allows_streamed_or_not(client):
    (choice,) = chat(client, **FORCED).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "paint")
    assert json.loads(call.function.arguments)["colour"] in ("red", "green")
    formatted = chat(client, response_format={"type": "json_object"}, **FORCED).choices[0].message
    assert formatted.tool_calls[0].function == call.function
    text, calls, reason = pieces(chat(client, stream=True, **FORCED))
    assert (text, reason) == ("", "tool_calls")
    ((_, name, arguments),) = calls.values()
    assert (name, arguments) == (call.function.name, call.function.arguments)


def test_the_older_functions_are_tools_whose_calls_have_the_older_form(client):
    older = {"functions": [tool["function"] for tool in TOOLS], "function_call": {"name": "paint"}}
    asked = {**FORCED, "tools": None, "tool_choice": None, **older}
    call = chat(client, **FORCED).choices[0].message.tool_calls[0].function.model_dump()
    (choice,) = chat(client, **asked).choices
    assert (choice.message.function_call.model_dump(), choice.message.tool_calls) == (call, None)
    assert choice.finish_reason == "function_call"
    parts = [part.choices[0].delta.function_call for part in chat(client, stream=True, **asked)]
    names, arguments = zip(*((part.name, part.arguments) for part in parts if part), strict=True)
    assert (names[0], set(names[1:]), "".join(arguments)) == ("paint", {None}, call["arguments"])


ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "stop"}]}
CHOICES = ["any", {"type": "any"}, ALLOWED, {"type": "tool", "name": "stop"}]
CHOICES += [{"type": "allowed_tools", "allowed_tools": {**ALLOWED, "tools": TOOLS[1:]}}]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_may_be_written_as_other_servers_have_it(url, choice):
    tools = TOOLS if "stop" in str(choice) else [{"name": "stop", "parameters": COLOUR}]
    asked = {**FORCED, "messages": HELLO, "tools": tools, "tool_choice": choice}
    (call,) = post(url, asked).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "stop"


def test_a_call_is_answered_by_a_tool_s_message(client):
    message = chat(client, **FORCED).choices[0].message
    told = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}
    talk = [*HELLO, message.model_dump(exclude_none=True), told]
    answer = chat(client, talk, tools=TOOLS, max_tokens=4)
    plain = chat(client, HELLO, tools=TOOLS, max_tokens=4)
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens


def test_tools_are_in_the_prompt_unless_none_may_be_called(client):
    few = chat(client, max_tokens=2).usage.prompt_tokens
    assert chat(client, max_tokens=2, tools=TOOLS).usage.prompt_tokens > few
    assert chat(client, max_tokens=2, tools=TOOLS, tool_choice="none").usage.prompt_tokens == few


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": "x"}}}, "no such tool"),
        ({**FORCED, "structured_outputs": {"regex": "a"}}, "a text follows one"),
        ({"structured_outputs": {"json": []}}, "structured_outputs.json must be an object"),
    ],
)
def test_what_can_not_be_followed_is_a_sentence(url, asked, sentence):
    answer = post(url, {"messages": HELLO, "max_tokens": 2, **asked})
    assert answer.status_code == 400
    assert sentence in error_in(answer)["message"]


def test_several_answers_have_seeds_one_after_the_other(client, sdk):
    answer = chat(client, n=3, temperature=0.8, seed=7)
    texts = [choice.message.content for choice in answer.choices]
    alone = [
        sdk.generate("hello", max_tokens=12, sampling=SamplingParams(temperature=0.8, seed=seed))
        for seed in (7, 8, 9)
    ]
    assert texts == [result.text for result in alone]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 36
    assert len(answer.metrics["speculative_decoding"]) == 3


def test_a_streamed_response_is_the_response(client):
    asked = {"model": "tiny", "input": "hello", "max_output_tokens": 12, "metadata": {"a": "b"}}
    asked["extra_body"] = {"seed": 5}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = (event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert "".join(deltas) == whole.output_text == last.response.output_text
    assert (events[0].type, last.type) == ("response.created", "response.incomplete")
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 12
    assert (whole.text.format.type, whole.metadata) == ("text", {"a": "b"})


def test_a_response_goes_on_from_the_newest_one_and_no_other(client, sdk):
    asked = {"model": "tiny", "max_output_tokens": 6, "temperature": 0}
    first = client.responses.create(input="hello", **asked)
    second = client.responses.create(input="more", previous_response_id=first.id, **asked)
    with sdk.session() as session:
        texts = [session.generate(text, max_tokens=6).text for text in ("hello", "more")]
    assert [first.output_text, second.output_text] == texts
    with pytest.raises(Exception, match="has gone on since"):
        client.responses.create(input="other", previous_response_id=first.id, **asked)
    with pytest.raises(Exception, match="instructions and tools must be those of the first"):
        client.responses.create(
            input="x", instructions="new", previous_response_id=second.id, **asked
        )
    with pytest.raises(Exception, match="is no id of a response"):
        client.responses.create(input="x", previous_response_id="resp_1", **asked)


def test_a_response_calls_tools_on_a_session(client):
    asked = {"model": "tiny", "tools": [{"type": "function", **PAINT}], "max_output_tokens": 60}
    choice = {"type": "function", "name": "paint"}
    first = client.responses.create(input="hello", tool_choice=choice, **asked)
    (call,) = first.output
    assert (call.type, call.name, first.status) == ("function_call", "paint", "completed")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = client.responses.create(
        input=[output], tool_choice=choice, previous_response_id=first.id, **asked
    )
    assert json.loads(second.output[0].arguments)["colour"] in ("red", "green")
    assert second.usage.input_tokens > first.usage.total_tokens


def test_tokens_of_prompts_are_returned_and_turned_into_text(url, sdk):
    told = post(url, {"prompt": "hello"}, "/tokenize").json()
    assert tuple(told["tokens"]) == sdk.tokenize("hello", raw=True)
    assert told["count"] == len(told["tokens"])
    assert post(url, {"tokens": told["tokens"]}, "/detokenize").json() == {"prompt": "hello"}
    chatted = post(url, {"messages": HELLO, "tools": TOOLS}, "/tokenize").json()
    assert tuple(chatted["tokens"]) == sdk.tokenize("hello", tools=TOOLS)
    for body, path in (({}, "/tokenize"), ({"tokens": [10**9]}, "/detokenize")):
        assert post(url, body, path).status_code == 400


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Wall(BaseModel):
    colour: Colour
    is_dry: bool


@pytest.mark.parametrize("api", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_an_agent_gets_values_of_its_type(url, api):
    models = pytest.importorskip("pydantic_ai.models.openai")
    from pydantic_ai import Agent
    from pydantic_ai.providers.openai import OpenAIProvider

    settings = {"max_tokens": 80, "temperature": 1.0}
    async with async_client_of(url) as client:
        model = getattr(models, api)("tiny", provider=OpenAIProvider(openai_client=client))
        run = await Agent(model, output_type=Wall).run("Which wall?", model_settings=settings)
    assert run.output.colour in Colour
