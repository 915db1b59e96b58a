"""Any server with OpenAI's API: prompts are token ids, answers are streamed.

vLLM and SGLang take such prompts. The time is that of the last event with text; tokens are counted
by the server's own usage.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slipstream.bench.peers.engine import (
    EngineAnswer,
    EngineSettings,
    EngineUnderTest,
    ProcessFacts,
    Prompts,
)
from slipstream.bench.peers.plan import MAX_LEVEL
from slipstream.config import are_local
from slipstream.core.errors import ServiceError

_TIMEOUT_S = 600.0
_DATA = "data:"
_DONE = "[DONE]"


class EndpointEngine(EngineUnderTest):
    """One server. Prompts that come together are requests at the same time."""

    def __init__(self, settings: EngineSettings) -> None:
        self._url: str = settings["url"]
        self._token: str | None = settings["token"]
        is_local = are_local(f"{urlsplit(self._url).hostname}:0")
        self._opener = build_opener(*[ProxyHandler({})] * is_local)
        with self._open("/models") as answer:
            models = json.load(answer)["data"]
        if not models:
            raise ServiceError(f"{self._url} serves no model")
        self._model: str = models[0]["id"]
        self._pool = ThreadPoolExecutor(MAX_LEVEL)

    def answer(self, config: str, prompts: Prompts, max_new_tokens: int) -> list[EngineAnswer]:
        """See `EngineUnderTest`."""
        return list(self._pool.map(lambda ids: self._one(ids, max_new_tokens), prompts))

    def facts(self) -> ProcessFacts:
        """See `EngineUnderTest`; the server's processes are not ours to look at."""
        return ProcessFacts((os.getpid(),), {}, {"url": self._url, "model": self._model})

    def close(self) -> None:
        """See `EngineUnderTest`."""
        self._pool.shutdown()

    def _one(self, prompt: Any, max_new_tokens: int) -> EngineAnswer:
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        texts: list[str] = []
        num_tokens: int | None = None
        with self._open("/completions", body) as answer:
            for event in _events(answer):
                texts += [choice.get("text") or "" for choice in event.get("choices", ())]
                if usage := event.get("usage"):
                    num_tokens = usage["completion_tokens"]
        if num_tokens is None:
            raise ServiceError(f"{self._url} sends no usage, so its tokens can't be counted")
        return EngineAnswer(num_tokens, text="".join(texts))

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}{path}", data, headers)
        try:
            return self._opener.open(request, timeout=_TIMEOUT_S)
        except HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace").strip()
            raise ServiceError(f"{self._url}{path} answers {error.code}: {text}") from None
        except (OSError, HTTPException) as error:
            raise ServiceError(f"{self._url}{path} does not answer ({error})") from None


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    """Yield server-sent events. Raises `ServiceError` for an error among them."""
    for line in lines:
        text = line.decode().strip()
        if not text.startswith(_DATA):
            continue
        data = text.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise ServiceError(f"the server failed: {event['error']}")
        yield event
