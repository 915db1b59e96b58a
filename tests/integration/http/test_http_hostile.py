"""Bodies and callers of which nothing good comes: HTTP refuses them, and never fails itself."""

import json
import socket
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from slipstream.rpc.server import ServerOptions
from support.network.bad_routers import Scripted, register
from support.network.key_files import key, write_keys
from support.services.background import served
from support.services.cluster import running
from support.services.http_front import HELLO, chat, client_of, error_in, fronted, post

DRAFT, FRONT = "ngram", {"max_body_bytes": 1 << 16, "default_max_tokens": 2}


@pytest.fixture(scope="module")
def large_url(router):
    with fronted(router.address) as url:
        yield url


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *((b"", "is not JSON"), (b"{", "is not JSON"), (b"[]", "a JSON object")),
        *((b'{"n": NaN}', "is not JSON"), (b'{"n": "\\ud83d"}', "half of a surrogate pair")),
        (b'{"n": ' + b"[" * 999, "is nested too deeply"),
    ],
)
def test_a_body_is_one_json_object(url, body, reason):
    answer = post(url, body)
    assert (answer.status_code, error_in(answer)["code"]) == (400, "invalid_json")
    assert reason in error_in(answer)["message"]


@pytest.mark.parametrize("given", [{"content-type": "text/plain"}, {"content-encoding": "gzip"}])
def test_a_body_says_that_it_is_plain_json(url, given):
    answer = post(url, b"{}", **given)
    assert (answer.status_code, error_in(answer)["code"]) == (415, "unsupported_media_type")
    assert next(iter(given)) in error_in(answer)["message"]


def test_marks_before_a_body_and_other_forms_of_its_path_change_nothing(url):
    body = b'{"prompt": "hello", "max_tokens": 4, "temperature": 0}'
    expected = post(url, body, "/v1/completions").json()["choices"]
    for path in ("/v1/completions/", "//v1/completions", "/completions"):
        answer = post(url, b"\xef\xbb\xbf" + body, path, **{"content-encoding": "identity"})
        assert answer.json()["choices"] == expected
    assert httpx2.get("http://front.example/version", proxy=url).status_code == 200


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_body_that_is_too_large_is_refused(url, is_announced):
    large = b'{"x": "' + b"x" * (1 << 17)
    body = large if is_announced else iter([large])
    answer = httpx2.post(
        f"{url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, error_in(answer)["code"]) == (413, "body_too_large")


def test_a_body_that_is_too_large_for_the_router_has_no_retry_time():
    small = ServerOptions(max_message_bytes=1024)
    with served(register(Scripted()), small) as address, fronted(address) as url:
        for stream in (False, True):
            answer = post(url, {"prompt": "x" * 5000, "stream": stream}, "/v1/completions")
            assert (answer.status_code, error_in(answer)["code"]) == (413, "body_too_large")
            assert "but the limit is 1024" in error_in(answer)["message"]
            assert "retry-after" not in answer.headers


CHATS = "/v1/chat/completions"
CALL = {"function": {"name": "f", "arguments": "{}"}}
WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1800)}}
ASKED = {"messages": HELLO}
HEAVY = {  # each of as many bytes as a body may have
    "messages": {"messages": [{"role": "user"}] * 200_000},
    "parts": {"messages": [{"role": "user", "content": [""] * 900_000}]},
    "fields": {"messages": [{"role": "user", **{f"f{n}": "" for n in range(30)}}] * 2048},
    "calls": {"messages": [{"role": "assistant", "tool_calls": [CALL] * 60}] * 350},
    "values": {"messages": [{"role": "user", "content": "", "x": [{}] * 900_000}]},
    "bias": {**ASKED, "logit_bias": {str(n): 1 for n in range(200_000)}},
    "schema": {**ASKED, "structured_outputs": {"json": {"x": [{"a": {}}] * 250_000}}},
    "choice": {**ASKED, "structured_outputs": {"choice": ["." * 4_000_000]}},
    "tools": {
        **ASKED,
        "tool_choice": "required",
        "tools": [{"function": {"name": f"f{n}", "parameters": WIDE}} for n in range(60)],
    },
    "items": ("/v1/responses", {"input": [{"type": "function_call", "name": "f"}] * 90_000}),
    "ids": ("/v1/completions", {"prompt": [1] * 1_000_000}),
    "prompts": ("/v1/completions", {"prompt": ["a"] * 600_000}),
    "tokens": ("/detokenize", {"tokens": [1] * 1_000_000}),
}


@pytest.mark.parametrize("form", HEAVY)
def test_no_form_of_a_body_holds_the_event_loop(large_url, form):
    """The watchdog of loops is in every test here."""
    path, body = HEAVY[form] if isinstance(HEAVY[form], tuple) else (CHATS, HEAVY[form])
    assert post(large_url, body, path).status_code in (400, 413)


def test_text_may_have_any_punctuation(large_url):
    talk = [{"role": "user", "content": '{"a": [1,2]}, \\"' * 99_000}]
    assert error_in(post(large_url, {"messages": talk}))["code"] == "context_length_exceeded"


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


ALICE, OURS, WRONG = "slip_alice-token", "slip_front-token", "slip_wrong-token"


@pytest.fixture(scope="module")
def guarded(model, tmp_path_factory):
    """A router that asks who calls; Alice has a limit, the front has none."""
    both = key("alice", ALICE, requests_per_minute=1), key("front", OURS)
    keys = write_keys(tmp_path_factory.mktemp("keys") / "keys.toml", *both)
    with running(model, "ngram", key_file=keys) as cluster:
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
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert error_in(answer)["type"] == "authentication_error"
        assert httpx2.get(f"{url}/health").status_code == 200


def test_the_fronts_own_token_is_for_those_who_show_none(guarded, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{OURS}\n")
    with fronted(guarded.address, token_file=file) as url:
        assert httpx2.get(f"{url}/v1/models").status_code == 200
        for header, before in (("authorization", "Bearer "), ("x-api-key", ""), ("api-key", "")):
            for key, status in ((OURS, 200), (WRONG, 401)):
                shown = {header: before + key}
                assert httpx2.get(f"{url}/v1/models", headers=shown).status_code == status
        file.write_text(f"{WRONG} by now\n")
        assert httpx2.get(f"{url}/v1/models").status_code == 401
