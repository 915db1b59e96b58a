"""Refusals and failures over HTTP: OpenAI's statuses, format and exception classes, never a bug."""

import re
from pathlib import Path

import httpx2
import openai
import pytest
import yaml

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
FUNCTION = {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}
WRONG = {"type": "wrong"}
GIVEN = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
REFUSED = [
    *((body, *case) for body, cases in GIVEN.items() for case in cases),
    ("chats", "tools", [{"function": {**FUNCTION, "name": f"f{number}"}} for number in range(129)]),
    ("chats", "stop", "a" * 999),
    ("completions", "prompt", ["a"] * 129),
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
