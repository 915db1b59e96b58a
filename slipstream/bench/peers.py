"""Servers with OpenAI's API as engines under test: our HTTP front, llama.cpp, vLLM, SGLang.

Each request is a chat of one message, greedy, whose tokens are those of the server's own usage.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slipstream.bench.load import Answer, EngineUnderTest
from slipstream.bench.questions import Question
from slipstream.config import are_local
from slipstream.core.errors import InvalidRequest, ServiceError

_TIMEOUT_S = 600.0


def parse_endpoints(texts: Sequence[str]) -> dict[str, str]:
    """Parse NAME=URL into URLs by name. Raises `InvalidRequest` for anything else."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, url = text.partition("=")
        if not name or not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"the endpoint is {text!r}, but must be NAME=http://HOST:PORT/v1")
        if name in found:
            raise InvalidRequest(f"the endpoint {name!r} is named twice")
        found[name] = url.rstrip("/")
    if not found:
        raise InvalidRequest("there is no endpoint to measure; --endpoint NAME=URL names one")
    return found


class Endpoint:
    """One server, and the first model that it serves."""

    def __init__(self, url: str, token: str | None, pool: ThreadPoolExecutor) -> None:
        """Look for the model. Raises `ServiceError` where there is no server or no model."""
        self._url = url
        self._token = token
        self._pool = pool
        is_local = are_local(f"{urlsplit(url).hostname}:0")
        self._opener = build_opener(*[ProxyHandler({})] * is_local)
        models = self._json("/models").get("data")
        if not models:
            raise ServiceError(f"{url} serves no model")
        self.model: str = models[0]["id"]

    async def send(self, question: Question, max_tokens: int) -> Answer:
        """Return the answer to a question. Raises `ServiceError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._answer, question.turns[0], max_tokens)

    def _answer(self, prompt: str, max_tokens: int) -> Answer:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        values = self._json("/chat/completions", body)
        try:
            text = values["choices"][0]["message"].get("content") or ""
            return Answer(values["usage"]["completion_tokens"], text)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServiceError(
                f"{self._url} sends no usage or no answer, so its tokens can't be counted"
            ) from error

    def _json(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}{path}", data, headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                values: dict[str, Any] = json.load(answer)
                return values
        except HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace").strip()
            raise ServiceError(f"{self._url}{path} answers {error.code}: {text}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise ServiceError(f"{self._url}{path} does not answer ({error})") from None


def endpoint_engines(
    urls: dict[str, str], token: str | None, pool: ThreadPoolExecutor
) -> list[EngineUnderTest]:
    """Return the servers, in the order of `urls`. Raises `ServiceError` where one is missing."""
    endpoints = {name: Endpoint(url, token, pool) for name, url in urls.items()}
    return [EngineUnderTest(name, endpoint.send) for name, endpoint in endpoints.items()]
