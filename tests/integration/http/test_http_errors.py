"""Refusals and failures over HTTP: OpenAI's statuses, format and exception classes, never a bug."""

import re

import httpx2
import openai
import pytest

from slipstream.client import errors
from support.network.bad_routers import Failing, register
from support.services.background import served
from support.services.http_front import HELLO, chat, client_of, error_in, fronted, post

DRAFT, FRONT = "ngram", {"max_body_bytes": 1 << 16, "default_max_tokens": 2}
FAILURES = [
    (errors.InvalidRequest, openai.BadRequestError, 400, "invalid_value"),
    (errors.UnsupportedCombination, openai.BadRequestError, 400, "unsupported_combination"),
    (errors.PromptTooLong, openai.BadRequestError, 400, "context_length_exceeded"),
    (errors.NotBuilt, openai.BadRequestError, 400, "unsupported_parameter"),
    (errors.Unauthenticated, openai.AuthenticationError, 401, "invalid_api_key"),
    (errors.PermissionDenied, openai.PermissionDeniedError, 403, "permission_denied"),
    (errors.ModelNotFound, openai.NotFoundError, 404, "model_not_found"),
    (errors.RequestExists, openai.ConflictError, 409, "conflict"),
    (errors.SessionTaken, openai.ConflictError, 409, "conflict"),
    (errors.LimitExceeded, openai.RateLimitError, 429, "rate_limit_exceeded"),
    (errors.CapacityError, openai.RateLimitError, 429, "no_capacity"),
    (errors.ModelMismatch, openai.InternalServerError, 500, "internal_error"),
    (errors.InternalError, openai.InternalServerError, 500, "internal_error"),
    (errors.Unavailable, openai.InternalServerError, 503, "unavailable"),
    (errors.HandshakeError, openai.InternalServerError, 503, "unavailable"),
    (errors.DeadlineExceeded, openai.InternalServerError, 504, "deadline_exceeded"),
]
ROUTES = {
    "chats": ("/v1/chat/completions", {"messages": HELLO}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "responses": ("/v1/responses", {"input": "hello", "store": False}),
}
MESSAGE = {"role": "assistant", "content": "Hello."}
FUNCTION = {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}
WRONG = {"type": "wrong"}
SCHEMA = "response_format.json_schema.schema"
FORM = {"type": "json_schema", "json_schema": {"schema": WRONG}}
CHATS = [
    ("n", 17),
    ("tools[0].type", [{"type": "web_search"}]),
    ("tools[0].function.name", [{"type": "function", "function": {"colour": 1}}]),
    ("tools[1]", [{"function": FUNCTION}, {"function": {"name": "a b"}}]),
    ("tools", [{"function": FUNCTION}] * 2),
    ("tools", [{"function": {**FUNCTION, "name": f"f{number}"}} for number in range(129)]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}}),
    ("temperature", 101),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", -0.1),
    ("top_k", -2),
    ("max_tokens", 0),
    ("max_tokens", 2.5),
    ("seed", -(2**63) - 1),
    ("min_tokens", 3),
    ("stop_token_ids", [10**6]),
    ("stop_token_ids[0]", ["x"]),
    ("stop", 5),
    ("stop", ["a"] * 17),
    ("stop", "a" * 999),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("top_logprobs", 3),
    ("add_special_tokens", True),
    ("continue_final_message", True),
    ("speculation.mode", {"mode": "sometimes"}),
    ("response_format.type", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    (SCHEMA, FORM),
    ("guided_json", WRONG),
    ("regex", "(("),
    ("response_format.schema", {"type": "json_object", "schema": WRONG}),
    ("chat_template_kwargs", {"messages": []}),
    ("structured_outputs.choice", {"choice": []}),
    ("structured_outputs.regex", {"regex": "(("}),
    ("messages", None),
    ("messages", []),
    ("messages[0].role", [{"role": "wizard", "content": "x"}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": [5]}]}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{}]}]),
    ("messages[1].content[0]", [*HELLO, {"role": "user", "content": [{"type": "file"}]}]),
    ("messages[0].content[0].text", [{"role": "user", "content": [{"text": 3}]}]),
    ("messages[0].content[0].text", [{"role": "user", "content": [{"type": "text"}]}]),
    ("messages[0].tool_calls", [{"role": "user", "tool_calls": "x"}]),
    ("messages[1].tool_calls[0]", [*HELLO, {**MESSAGE, "tool_calls": [{}]}]),
]
COMPLETIONS = [
    ("add_special_tokens", False),
    ("prompt[1]", ["x", ""]),
    *(("prompt", prompt) for prompt in ("", [], {}, 5, [-1], ["a"] * 129)),
    *(("prompt[0]", prompt) for prompt in ([[]], [1, "a"], [1.5])),
    ("structured_outputs.json", {"json": WRONG}),
]
RESPONSES = [
    ("input[1].content[0]", [*HELLO, {"role": "user", "content": [{"type": "x"}]}]),
    ("input[1].output[0]", [*HELLO, {"type": "function_call_output", "output": [5]}]),
    ("input[0].content", [{"role": "user", "content": 5}]),
    ("input[0].role", [{"role": "wizard", "content": "x"}]),
    ("input[1].type", [*HELLO, {"type": "item_reference", "id": "x"}]),
    ("input[0].name", [{"type": "function_call", "arguments": "{}"}]),
    ("input[1]", [*HELLO, 5]),
    ("max_output_tokens", -2),
    ("tools[0]", [{**FUNCTION, "name": "a b"}]),
    ("tools[0].type", [{"type": "web_search"}]),
    ("text.format.schema", {"format": {"type": "json_schema"}}),
    ("text.format.schema", {"format": {"type": "json_schema", "schema": 5}}),
]
REFUSED = [
    (body, *case)
    for body, cases in (("chats", CHATS), ("completions", COMPLETIONS), ("responses", RESPONSES))
    for case in cases
]
"""Bodies with one value at fault, whose place a refusal names."""


@pytest.fixture(scope="module")
def failing():
    """A router that raises its `error`, and a client of the front before it."""
    servicer = Failing(errors.InternalError())
    with (
        served(register(servicer)) as address,
        fronted(address, timeout_s=3.0) as url,
        client_of(url) as servicer.client,
    ):
        yield servicer


@pytest.mark.parametrize(("kind", "raises", "status", "code"), FAILURES)
def test_every_error_of_a_router_is_the_one_that_openai_has(failing, kind, raises, status, code):
    failing.error = kind("3 are too many, 2 are not")
    for stream, header in ((False, "x-request-id"), (True, "Idempotency-Key")):
        with pytest.raises(raises, match="3 are too many, 2 are not") as raised:
            chat(failing.client, stream=stream, extra_headers={header: "mine"})
        error = raised.value
        assert (error.status_code, error.code, error.request_id) == (status, code, "mine")


def test_a_client_over_its_rate_gets_a_retry_time():
    busy = errors.LimitExceeded("2 requests per minute are used up", retry_after_s=7.2)
    with served(register(Failing(busy))) as address, fronted(address) as url:
        answer = post(url, {"messages": HELLO})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")
    assert error_in(answer)["type"] == "rate_limit_error"


def test_an_error_after_the_first_words_is_the_last_event_of_the_stream():
    broken = Failing(errors.ModelMismatch("the model is gone"), num_chunks=2)
    with served(register(broken)) as address, fronted(address) as url, client_of(url) as client:
        stream = chat(client, stream=True)
        heard = []
        with pytest.raises(openai.APIError, match="the model is gone"):
            heard.extend(part.choices[0].delta.content for part in stream)
    # a list is extended part by part
    assert heard == ["", "x", "x"]


@pytest.mark.parametrize(("body", "place", "value"), REFUSED)
def test_a_refusal_names_the_place_of_the_fault(url, body, place, value):
    path, valid = ROUTES[body]
    answer = post(url, {**valid, re.split(r"[.\[]", place)[0]: value}, path)
    error = error_in(answer)
    assert (answer.status_code, error["param"]) == (400, place)
    assert error["message"].startswith((f"{place} ", f"{place}: "))
    assert "\n" not in error["message"]


def test_a_schema_of_a_tool_that_can_not_be_followed_is_refused_by_its_place(url):
    for choice, wrong, place in (
        ("required", {"not": {"$ref": "#/no"}}, "tools[1].function.parameters"),
        ("required", WRONG, "tools[1].function.parameters"),
        ({"name": "g"}, {"items": 5}, "tools[1].function.parameters"),
        ("required", {"items": 5}, "tools"),
        ("auto", {"items": 5}, "tools"),
    ):
        tools = [FUNCTION, {"name": "g", "parameters": wrong, "strict": True}]
        asked = {"messages": HELLO, "tools": [{"function": tool} for tool in tools]}
        answer = post(url, {**asked, "tool_choice": choice})
        assert (answer.status_code, error_in(answer)["param"]) == (400, place)


def test_a_request_has_one_name_of_printable_ascii(url):
    for headers, reason in (
        ([(b"idempotency-key", b"a"), (b"idempotency-key", b"b")], "is given 2 times"),
        ([(b"idempotency-key", b"x" * 257)], "at most"),
        ([(b"idempotency-key", "ü".encode())], "printable ASCII"),
    ):
        asked = {"messages": HELLO, "max_tokens": 2}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=asked, headers=headers)
        assert answer.status_code == 400
        assert error_in(answer)["message"].startswith("Idempotency-Key ")
        assert reason in error_in(answer)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models/tiny", 405),
    ],
)
def test_wrong_paths_and_methods_are_errors_of_the_same_form(url, method, path, status):
    answer = httpx2.request(method, url + path)
    assert answer.status_code == status
    assert error_in(answer)["type"] == "invalid_request_error"
