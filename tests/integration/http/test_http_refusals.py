"""A refusal names the place in the body of what is at fault, and nothing else."""

import pytest

from support.services.http_front import HELLO, error_in, post

DRAFT = "ngram"
ROUTES = {
    "chats": ("/v1/chat/completions", {"messages": HELLO}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "responses": ("/v1/responses", {"input": "hello", "store": False}),
}
MESSAGE = {"role": "assistant", "content": "Hello."}
FUNCTION = {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}
PLACES = [
    ("chats", "messages[1].content[0]", [*HELLO, {"role": "user", "content": [{"type": "file"}]}]),
    ("chats", "messages[0].content[0]", [{"role": "user", "content": [{"type": [5]}]}]),
    ("chats", "add_special_tokens", True),
    ("completions", "add_special_tokens", False),
    ("completions", "prompt[1]", ["x", ""]),
    ("chats", "messages[1].tool_calls[0]", [*HELLO, {**MESSAGE, "tool_calls": [{}]}]),
    ("responses", "input[1].content[0]", [*HELLO, {"role": "user", "content": [{"type": "x"}]}]),
    ("responses", "input[1].output[0]", [*HELLO, {"type": "function_call_output", "output": [5]}]),
    ("responses", "input[0].content", [{"role": "user", "content": 5}]),
    ("responses", "input[0].role", [{"role": "wizard", "content": "x"}]),
    ("responses", "input[1].type", [*HELLO, {"type": "item_reference", "id": "x"}]),
    ("responses", "input[0].name", [{"type": "function_call", "arguments": "{}"}]),
    ("responses", "input[1]", [*HELLO, 5]),
    ("chats", "messages[0].content[0]", [{"role": "user", "content": [{}]}]),
    ("chats", "messages", []),
    ("chats", "messages", [*HELLO, MESSAGE]),
    ("chats", "tools[1]", [{"function": FUNCTION}, {"function": {"name": "a b"}}]),
    ("chats", "tools", [{"function": FUNCTION}] * 2),
    ("chats", "continue_final_message", True),
    ("chats", "stop", ["a"] * 17),
    ("completions", "prompt", [-1]),
    ("responses", "max_output_tokens", -1),
    ("responses", "tools[0]", [{**FUNCTION, "name": "a b"}]),
]


@pytest.mark.parametrize(("body", "place", "value"), PLACES)
def test_a_refusal_names_the_place_of_the_fault(url, body, place, value):
    path, valid = ROUTES[body]
    answer = post(url, {**valid, place.partition("[")[0]: value}, path)
    error = error_in(answer)
    assert (answer.status_code, error["param"]) == (400, place)
    assert error["message"].startswith((f"{place} ", f"{place}: "))


WRONG = {"type": "wrong"}
NO_REFERENCE = {"name": "g", "parameters": {"not": {"$ref": "#/no"}}}
TOOLS = [{"function": FUNCTION}, {"function": NO_REFERENCE}]
FORM = {"type": "json_schema", "json_schema": {"schema": WRONG}}
SCHEMAS = [
    ("chats", "tools[1].function.parameters", {"tools": TOOLS, "tool_choice": "required"}),
    ("chats", "response_format.json_schema.schema", {"response_format": FORM}),
    ("completions", "structured_outputs.json", {"structured_outputs": {"json": WRONG}}),
    ("responses", "text.format.schema", {"text": {"format": {"type": "json_schema"}}}),
    ("responses", "text.format.schema", {"text": {"format": {"type": "json_schema", "schema": 5}}}),
]


@pytest.mark.parametrize(("body", "place", "given"), SCHEMAS)
def test_a_schema_that_can_not_be_followed_is_refused_by_its_place(url, body, place, given):
    path, valid = ROUTES[body]
    answer = post(url, {**valid, **given}, path)
    assert (answer.status_code, error_in(answer)["param"]) == (400, place)
