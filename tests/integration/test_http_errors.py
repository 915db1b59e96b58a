"""Refusals and failures over HTTP: OpenAI's statuses, format and exception classes, never a bug."""

import json
import socket
from random import Random
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from background import served
from bad_routers import Failing, register
from cluster import running
from http_front import client_of, fronted, post
from key_files import key, write_keys
from processes import save_long_checkpoint
from slipstream.client import errors
from slipstream.gateway.body import HARMLESS, NO_EFFECT
from slipstream.gateway.fields import ChatRequest, CompletionRequest

HELLO = [{"role": "user", "content": "hello"}]
NOBODY = "127.0.0.1:1"
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
REFUSED = [
    ("n", 2),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("functions", [{"name": "f"}]),
    ("tool_choice", "required"),
    ("audio", {"voice": "alloy"}),
    ("modalities", ["audio"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("store", True),
    ("service_tier", "flex"),
    ("reasoning_effort", "high"),
    ("web_search_options", {}),
    ("colour", "blue"),
    ("guided_regex", "x"),
    ("temperature", 101),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("max_tokens", 0),
    ("max_tokens", 2.5),
    ("seed", -1),
    ("stop", 5),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("top_logprobs", 3),
    ("stream_options", {"include_usage": True}),
    ("speculation.mode", {"mode": "sometimes"}),
    ("speculation.colour", {"colour": "blue"}),
    ("response_format.type", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    ("structured_outputs", {"regex": "a", "choice": ["a"]}),
    ("structured_outputs.choice", {"choice": []}),
    ("messages[0].role", [{"role": "tool", "content": "x"}]),
    ("messages[0].content", [{"role": "assistant", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("messages[0].name", [{"role": "user", "content": "x", "name": "ada"}]),
    ("messages", None),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_long_checkpoint(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def router(folder):
    with running(folder, "ngram") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url(router):
    with fronted(router.address, max_body_bytes=1 << 16, default_max_tokens=2) as url:
        yield url


def chat(client, **asked):
    return client.chat.completions.create(model="tiny", messages=HELLO, **asked)


def error_in(answer):
    """What is wrong, in the only form that it may have."""
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert list(error) == ["message", "type", "param", "code"]
    return error


@pytest.fixture(scope="module")
def failing():
    """A router that raises its `error`, and a client of the front before it."""
    servicer = Failing(errors.InternalError())
    with (
        served(register(servicer)) as address,
        fronted(address, timeout_s=0.5) as url,
        client_of(url) as servicer.client,
    ):
        yield servicer


@pytest.mark.parametrize(("kind", "raises", "status", "code"), FAILURES)
def test_every_error_of_a_router_is_the_exception_that_openai_has_for_it(
    failing, kind, raises, status, code
):
    failing.error = kind("3 are too many, 2 are not")
    for stream in (False, True):
        with pytest.raises(raises, match="3 are too many, 2 are not") as raised:
            chat(failing.client, stream=stream, extra_headers={"x-request-id": "mine"})
        error = raised.value
        assert (error.status_code, error.code, error.request_id) == (status, code, "mine")


def test_who_asks_too_often_is_told_when_to_come_back():
    busy = errors.LimitExceeded("2 requests per minute are used up", retry_after_s=7.2)
    with served(register(Failing(busy))) as address, fronted(address) as url:
        answer = post(url, {"messages": HELLO})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")
    assert error_in(answer)["type"] == "rate_limit_error"


def test_an_error_after_the_first_words_is_the_last_event_of_the_stream():
    broken = Failing(errors.ModelMismatch("the model is gone"), num_chunks=2)
    with (
        served(register(broken)) as address,
        fronted(address) as url,
        client_of(url) as client,
    ):
        stream = chat(client, stream=True)
        heard = []
        with pytest.raises(openai.APIError, match="the model is gone"):
            heard.extend(part.choices[0].delta.content for part in stream)
    # a list is extended part by part
    assert heard == ["", "x", "x"]


def test_without_a_router_health_and_requests_say_so():
    with fronted(NOBODY, timeout_s=0.2) as url:
        assert httpx2.get(f"{url}/health").status_code == 503
        answer = post(url, {"messages": HELLO})
    assert answer.status_code in (503, 504)
    error_in(answer)


@pytest.mark.parametrize(("param", "value"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(url, param, value):
    name = param.partition(".")[0].partition("[")[0]
    answer = post(url, {"messages": HELLO, "max_tokens": 2, name: value})
    error = error_in(answer)
    assert (answer.status_code, error["param"]) == (400, param)
    assert name in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(("param", "value"), [("best_of", 2), ("echo", True), ("suffix", "x")])
def test_what_completions_cannot_honour_is_refused_by_name(url, param, value):
    answer = post(url, {"prompt": "hello", param: value}, "/v1/completions")
    assert (answer.status_code, error_in(answer)["param"]) == (400, param)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [], "", {}, [1, "a"], [-1], [1.5]])
def test_a_completion_has_one_prompt(url, prompt):
    answer = post(url, {"prompt": prompt, "max_tokens": 2}, "/v1/completions")
    assert answer.status_code == 400
    assert "prompt" in error_in(answer)["message"]


def test_what_changes_no_answer_is_taken(url):
    harmless = {name: values[0] for name, values in HARMLESS.items() if values}
    nothing = {name: None for name in (*HARMLESS, "stop", "seed", "logit_bias", "temperature")}
    for more in ({name: "x" for name in NO_EFFECT}, harmless, nothing):
        answer = post(url, {"messages": HELLO, "max_tokens": 2, **more})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/", 404),
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


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"", "is not JSON"), (b"{", "is not JSON"), (b"[]", "an object"), (b'{"n": NaN}', "JSON")],
)
def test_a_body_is_one_json_object(url, body, reason):
    answer = post(url, body)
    assert (answer.status_code, error_in(answer)["code"]) == (400, "invalid_json")
    assert reason.split()[-1] in error_in(answer)["message"]


def test_a_body_says_that_it_is_json(url):
    answer = post(url, b"{}", **{"content-type": "text/plain"})
    assert (answer.status_code, error_in(answer)["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_body_that_is_too_large_is_refused(url, is_announced):
    large = b'{"x": "' + b"x" * (1 << 17)
    body = large if is_announced else iter([large])
    answer = httpx2.post(
        f"{url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, error_in(answer)["code"]) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_not_waited_for(router):
    with (
        fronted(router.address, body_timeout_s=0.05) as url,
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as caller,
    ):
        caller.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        )
        answer = b"".join(iter(lambda: caller.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_garbage_is_refused_or_answered_and_never_a_bug(url):
    random = Random(5)
    statuses = set()
    with httpx2.Client(base_url=url, timeout=60) as client:
        for _ in range(200):
            path, body = garbage(random)
            headers = {"content-type": "application/json"}
            answer = client.post(path, content=body, headers=headers)
            statuses.add(answer.status_code)
            assert answer.status_code in (200, 400, 404, 413), (body, answer.text)
            if answer.status_code != 200:
                error_in(answer)
    assert statuses >= {200, 400}


VALUES = (None, True, 0, -1, 1, 2, 10**400, 0.5, 1e308, "", "x", "auto", "\ud800", [], {}, [[]])
PATHS = {
    "/v1/chat/completions": (ChatRequest, {"messages": HELLO, "max_tokens": 2}),
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 2}),
}


def garbage(random):
    """A path and a body with something wrong, or nothing."""
    path = random.choice(list(PATHS))
    kind, valid = PATHS[path]
    if random.random() < 0.1:
        return path, random.randbytes(random.randrange(200))
    body = dict(valid)
    names = [*(name for name in kind.model_fields if name != "max_tokens"), *HARMLESS, *NO_EFFECT]
    for _ in range(random.randrange(3)):
        body[random.choice(names)] = nested(random)
    data = json.dumps(body).encode()
    at = random.randrange(len(data))
    return path, data[:at] + data[at + 1 :] if random.random() < 0.1 else data


def nested(random, depth=0):
    """A value of any kind."""
    choice = random.random()
    if depth > 3 or choice < 0.6:
        return random.choice(VALUES)
    if choice < 0.8:
        return [nested(random, depth + 1) for _ in range(random.randrange(3))]
    names = ("type", "text", "role", "content", "mode", "json", "regex", "schema", "json_schema")
    return {name: nested(random, depth + 1) for name in random.sample(names, 2)}


ALICE, OURS, WRONG = "slip_alice-token", "slip_front-token", "slip_wrong-token"


@pytest.fixture(scope="module")
def guarded(folder, tmp_path_factory):
    """A router that asks who calls; Alice has a limit, the front has none."""
    both = key("alice", ALICE, requests_per_minute=1), key("front", OURS)
    keys = write_keys(tmp_path_factory.mktemp("keys") / "keys.toml", *both)
    with running(folder, "ngram", key_file=keys) as cluster:
        yield cluster


def test_a_callers_token_is_shown_to_the_router_and_its_limits_hold(guarded):
    with fronted(guarded.address) as url, client_of(url, key=ALICE) as client:
        assert chat(client, max_tokens=2).choices
        with pytest.raises(openai.RateLimitError, match="1 requests per minute") as told:
            chat(client, max_tokens=2)
        assert 0 < int(told.value.response.headers["retry-after"]) <= 60


@pytest.mark.parametrize("shown", [None, f"Bearer {WRONG}", "Basic eDp5", "Bearer ümlaut"])
def test_who_shows_no_token_that_a_router_knows_is_not_let_in(guarded, shown):
    headers = {} if shown is None else {"authorization": shown.encode()}
    with fronted(guarded.address) as url:
        answer = httpx2.get(f"{url}/v1/models", headers=headers)
        assert answer.status_code == 401
        assert error_in(answer)["type"] == "authentication_error"
        assert httpx2.get(f"{url}/health").status_code == 200


def test_the_fronts_own_token_is_for_those_who_show_none(guarded, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{OURS}\n")
    with fronted(guarded.address, token_file=file) as url:
        assert httpx2.get(f"{url}/v1/models").status_code == 200
        shown = {"authorization": f"Bearer {WRONG}"}
        assert httpx2.get(f"{url}/v1/models", headers=shown).status_code == 401
        file.write_text(f"{WRONG} by now\n")
        assert httpx2.get(f"{url}/v1/models").status_code == 401
