"""The HTTP front on the loop of a background thread, before a router, for tests that block."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import openai

from slipstream_gateway.config import HttpConfig
from slipstream_gateway.server import Gateway
from support.services.background import LoopThread

KEY = "sk-any"
HELLO = [{"role": "user", "content": "hello"}]
_TRUSTED = ssl.create_default_context()
"""Made once: to read the authorities of a system takes longer than a request."""


@contextmanager
def fronted(router: str, **config: Any) -> Iterator[str]:
    """The base URL of a front, without /v1. `config` are fields of its `HttpConfig`."""
    config = {"router": router, "listen_address": "127.0.0.1:0", **config}
    thread = LoopThread()
    gateway = Gateway(HttpConfig(**config))
    try:
        scheme = "https" if "tls_cert" in config else "http"
        yield f"{scheme}://{thread.run(gateway.start)}"
    finally:
        thread.run(lambda: gateway.stop(0))
        thread.close()


def client_of(url: str, *, key: str = KEY, **options: Any) -> openai.OpenAI:
    """OpenAI's own client, which tries nothing twice. Close it."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, **options)


def async_client_of(url: str) -> openai.AsyncOpenAI:
    """OpenAI's own client for asyncio, which tries nothing twice. Close it."""
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def post(
    url: str, body: Any, path: str = "/v1/chat/completions", **headers: str
) -> httpx2.Response:
    """A request by hand: bytes as they are, everything else as JSON."""
    if isinstance(body, bytes):
        sent, headers = {"content": body}, {"content-type": "application/json", **headers}
    else:
        sent = {"json": body}
    return httpx2.post(url + path, **sent, headers=headers, timeout=60, verify=_TRUSTED)


def chat(client: openai.OpenAI, messages: Any = HELLO, **asked: Any) -> Any:
    """A chat's answer, or its stream; a short one unless `asked` says otherwise."""
    given = {"model": "tiny", "messages": messages, "max_tokens": 12, **asked}
    return client.chat.completions.create(**given)


def completion(client: openai.OpenAI, prompt: Any = "hello", **asked: Any) -> Any:
    """Return a completion, or its stream; a short one unless `asked` has other values."""
    given = {"model": "tiny", "prompt": prompt, "max_tokens": 12, **asked}
    return client.completions.create(**given)


def error_in(answer: httpx2.Response) -> dict[str, Any]:
    """Return the error, in the only form that it may have."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any]
    (error,) = answer.json().values()
    assert list(error) == ["message", "type", "param", "code"]
    return error
