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

from slipstream.bench.harness import require_distinct
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
        require_distinct([*found, name], "the endpoint")
        found[name] = url.rstrip("/")
    if not found:
        raise InvalidRequest("there is no endpoint to measure; --endpoint NAME=URL names one")
    return found


def endpoint_engine(
    name: str, url: str, token: str | None, pool: ThreadPoolExecutor
) -> EngineUnderTest:
    """Return a server with the first model that it serves. Raises `ServiceError` without one."""
    models = _json(f"{url}/models", token).get("data")
    if not models:
        raise ServiceError(f"{url} serves no model")

    def answer(prompt: str, max_tokens: int) -> Answer:
        message = {"role": "user", "content": prompt}
        body = {"model": models[0]["id"], "messages": [message], "temperature": 0}
        values = _json(f"{url}/chat/completions", token, body | {"max_tokens": max_tokens})
        try:
            text = values["choices"][0]["message"].get("content") or ""
            return Answer(values["usage"]["completion_tokens"], text)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServiceError(
                f"{url} sends no usage or no answer, so its tokens can't be counted"
            ) from error

    async def send(question: Question, max_tokens: int) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, answer, question.turns[0], max_tokens)

    return EngineUnderTest(name, send)


def _json(url: str, token: str | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = Request(url, None if body is None else json.dumps(body).encode(), headers)
    is_local = are_local(f"{urlsplit(url).hostname}:0")
    try:
        with build_opener(*[ProxyHandler({})] * is_local).open(
            request, timeout=_TIMEOUT_S
        ) as found:
            values: dict[str, Any] = json.load(found)
            return values
    except HTTPError as error:
        with error:
            text = error.read(500).decode(errors="replace").strip()
        raise ServiceError(f"{url} answers {error.code}: {text}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise ServiceError(f"{url} does not answer ({error})") from None
