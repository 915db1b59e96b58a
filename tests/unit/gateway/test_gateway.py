"""What bodies of HTTP requests mean to the SDK, log-probabilities in OpenAI's two shapes, and
several answers as one stream: read no faster than they are taken, and all of them end."""

import asyncio
import json
import re
from contextlib import aclosing

import pytest

from slipstream.client import AsyncChunkStream, Chunk
from slipstream.core import errors
from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import TokenLogprob, TopLogprob
from slipstream_gateway.body import ChatRequest, read_as
from slipstream_gateway.choices import merged, opened
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.errors import REGEXES, TABLE, HttpError, http_error
from slipstream_gateway.responses import IMPOSSIBLE, chat_logprobs, completion_logprobs
from slipstream_gateway.sdk_options import chat_options

HELLO = [{"role": "user", "content": "hello"}]


def chat(**body):
    body = read_as(ChatRequest, json.dumps({"messages": HELLO, **body}).encode())
    return chat_options(body, "r", 99)[0]


def test_either_name_of_the_limit_counts_and_two_limits_do_not():
    for name in ("max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens"):
        assert chat(**{name: 7})["max_tokens"] == 7
    assert chat(max_tokens=7, max_completion_tokens=7, n_predict=-1)["max_tokens"] == 7
    assert (chat(max_tokens=-1)["max_tokens"], chat()["max_tokens"]) == (None, 99)
    with pytest.raises(HttpError, match="max_tokens and max_completion_tokens"):
        chat(max_tokens=7, max_completion_tokens=8)


def test_a_choice_is_taken_as_it_is_written():
    odd = ["a.b*c", "(x|y)", "[z]", "$1 ^ {2}", "back\\slash?", "new\nline", "é+"]
    regex = chat(structured_outputs={"choice": odd})["regex"]
    for text in odd:
        assert re.fullmatch(regex, text)
    assert not re.fullmatch(regex, "aXbc")


def test_only_one_of_the_ways_to_say_what_the_text_must_be_is_taken():
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    with pytest.raises(HttpError, match="response_format and structured_outputs"):
        chat(**both)
    assert chat(response_format={"type": "text"}, structured_outputs={"regex": "a"})["regex"] == "a"


BIT = {"enum": [0, 1]}
FORMATS = [{"type": "json_object", "schema": BIT}, {"type": "json_schema", "schema": BIT}]
WRITTEN = [{"guided_json": BIT}, {"json_schema": BIT}, *({"response_format": it} for it in FORMATS)]
WRITTEN += [{"regex": "(a)|(b)"}, {"guided_regex": "(a)|(b)"}, {"guided_choice": ["a", "b"]}]


@pytest.mark.parametrize("body", WRITTEN)
def test_what_the_text_follows_may_be_written_as_other_servers_have_it(body):
    nothing = {"guided_json": {}, "guided_regex": "", "guided_choice": [], "json_schema": {}}
    for given in (body, {**nothing, **body}):
        found = chat(**given)
        expected = (None, "(a)|(b)") if body.keys() & {*REGEXES, "guided_choice"} else (BIT, None)
        assert (found.get("json_schema"), found.get("regex")) == expected


def test_the_template_reads_what_clients_send_for_it():
    given = {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"thinking": True, "x": 1}}
    assert chat(**given)["chat_template_kwargs"] == {
        "reasoning_effort": "low",
        "thinking": True,
        "x": 1,
    }
    off = {"enable_thinking": False, "thinking": False}
    for body in (
        {"reasoning": {"enabled": False}},
        {"think": False},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False, "think": True},
    ):
        assert chat(**body)["chat_template_kwargs"] == off
    none = chat(reasoning_effort="none")["chat_template_kwargs"]
    assert none == {"reasoning_effort": "none", **off}


def test_a_refusal_quotes_nothing_that_was_written():
    secret = "a secret that nobody should log"
    for body in ({"messages": secret}, {"seed": secret}, {"stop": [[secret]]}):
        with pytest.raises(HttpError) as refused:
            chat(**body)
        assert secret not in str(refused.value)


HALF = (
    TokenLogprob(-0.5, (TopLogprob(1, -0.5, b"a"), TopLogprob(2, -1.0, b"b")), b"a"),
    TokenLogprob(-2.0, (TopLogprob(3, -1.0, b"\xe2\x82"),), b"\xe2\x82"),
    TokenLogprob(float("-inf"), (), b"\xac"),
)


def test_tokens_that_are_no_whole_characters_have_their_bytes():
    content = chat_logprobs(HALF)["content"]
    assert [token["token"] for token in content] == ["a", "�", "�"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == "a€"
    assert [token["logprob"] for token in content] == [-0.5, -2.0, IMPOSSIBLE]
    assert [len(token["top_logprobs"]) for token in content] == [2, 1, 0]


def test_the_older_shape_names_a_token_among_the_likeliest():
    told = completion_logprobs(HALF, offset=10)
    assert told["tokens"] == ["a", r"bytes:\xe2\x82", r"bytes:\xac"]
    assert told["top_logprobs"] == [{"a": -0.5, "b": -1.0}, {r"bytes:\xe2\x82": -2.0}, {}]
    assert told["text_offset"] == [10, 11, 12]


def test_nothing_is_said_of_tokens_of_which_nothing_is_known():
    assert chat_logprobs(()) is completion_logprobs(()) is completion_logprobs((None,)) is None
    assert len(chat_logprobs((None, HALF[0]))["content"]) == 1


def test_every_error_of_ours_has_a_status():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert all(400 <= http_error(kind("it is so")).status < 600 for kind in kinds)
    listed = [kind for kind, _, _ in TABLE]
    for number, kind in enumerate(listed):
        assert not any(issubclass(kind, earlier) for earlier in listed[:number]), kind


NO_ORIGINS = ["", "chat.example", "https://chat.example/", "https://Chat.example"]
NO_ORIGINS += ["https://chat.example:443", "http://chat.example:80", "https://me@chat.example"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"router": "nonsense"}, "must be HOST:PORT"),
        ({"router": "router.example:50051"}, "in the clear"),
        ({"listen_address": "8000"}, "must be HOST:PORT"),
        ({"default_max_tokens": 0}, "must be from 1"),
        ({"grace_s": -1}, "must be from 0 to 86400"),
        ({"max_connections": 0}, "must be above 0"),
        ({"header_timeout_s": 0}, "above 0 and at most"),
        ({"tls_cert": "cert.pem"}, "go together"),
        ({"peer_router_name": "router"}, "needs peer_ca"),
        *(({"allowed_origins": (at,)}, "allowed_origins has ") for at in NO_ORIGINS),
        ({"allowed_origins": ("*", "http://localhost:3000")}, "allowed_origins has "),
    ],
)
def test_a_front_refuses_what_it_cannot_do(given, reason):
    with pytest.raises(InvalidRequest, match=reason):
        HttpConfig(**given)


def test_a_router_elsewhere_is_dialled_in_the_clear_only_where_that_is_meant():
    config = HttpConfig("router.example:50051", "[::1]:8000", plaintext_tokens=True)
    assert config.host_and_port() == ("::1", 8000)
    assert config.to_router() is None


NUM_STREAMS = 4


class Source:
    """An answer of so many chunks, which may then fail; counts those that were read."""

    def __init__(self, length, error=None):
        self.length, self.error = length, error
        self.num_read, self.is_open = 0, True

    async def start(self):
        return await self.read()

    async def read(self):
        await asyncio.sleep(0)
        self.num_read += 1
        if self.num_read <= self.length:
            return Chunk("x" * 1000, (1,))
        self.is_open = False
        if self.error is not None:
            raise self.error
        return None

    async def aclose(self):
        self.is_open = False

    def cancel(self):
        self.is_open = False


async def streams_of(sources):
    return await opened(*(AsyncChunkStream(source, request_id="r") for source in sources))


async def until_nothing_moves(sources):
    before = None
    while (now := [source.num_read for source in sources]) != before:
        before = now
        for _ in range(20):
            await asyncio.sleep(0)


async def test_answers_are_read_no_faster_than_they_are_taken_and_end_when_the_caller_leaves():
    sources = [Source(10_000) for _ in range(NUM_STREAMS)]
    async with aclosing(merged(await streams_of(sources))) as chunks:
        for num_taken in range(1, 100):
            await anext(chunks)
            await until_nothing_moves(sources)
            assert sum(source.num_read for source in sources) <= num_taken + 2 * NUM_STREAMS + 1
    assert not any(source.is_open for source in sources)


async def test_an_answer_that_fails_ends_the_others_though_none_of_them_is_taken():
    sources = [Source(10_000) for _ in range(NUM_STREAMS - 1)]
    sources.append(Source(3, errors.ModelError("it broke")))
    with pytest.raises(errors.ModelError, match="it broke"):
        async for _ in merged(await streams_of(sources)):
            await until_nothing_moves(sources)
    assert not any(source.is_open for source in sources)
