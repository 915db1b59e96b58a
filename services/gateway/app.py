"""The HTTP front as an ASGI application: routes, callers' tokens and traces, errors.

A client of routers like any other; what parameters mean and how answers look is beside it.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

import slipstream
from slipstream.client import AsyncClient, ModelInfo, RequestOptions
from slipstream.core.errors import AccessError, SlipstreamError, Unavailable
from slipstream.core.request import MAX_NAME_LENGTH, check_name
from slipstream.gateway.answers import Chat, Completion, Envelope, Said, Style, metrics, usage
from slipstream.gateway.asked import Asked, asked_chat, asked_completion
from slipstream.gateway.body import parameters, read_body
from slipstream.gateway.config import HttpConfig
from slipstream.gateway.errors import CallerGone, Problem, Refused, problem_of
from slipstream.gateway.events import Events, as_json
from slipstream.gateway.fields import ChatRequest, CompletionRequest, R, understood
from slipstream.gateway.openapi import described
from slipstream.gateway.waiting import EventStream, unless_gone
from slipstream.rpc.certificates import Reloaded
from slipstream.telemetry.carrier import Carrier, within

CLIENT_CLOSED = 499
"""What a caller who has left would be told."""
IDEMPOTENCY_KEY = "Idempotency-Key"
"""The header in which a caller names a request, so that sent again it is the same one."""
REQUEST_ID = "x-request-id"
"""The header for logs: proxies set it, and may pass the same one on with several requests."""
_LOG = logging.getLogger("slipstream.http")
_BEARER = "bearer"


class Front:
    """What the routes do. `client` is of the routers, `probe` the same for questions of health."""

    def __init__(
        self,
        config: HttpConfig,
        client: AsyncClient,
        probe: AsyncClient,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._client = client
        self._probe = probe
        files = filter(None, [config.token_file])
        self._token = Reloaded(tuple(files), config.token)
        self._wall_s = wall_s

    async def chat(self, request: Request) -> Response:
        """Goes on from messages, through the model's chat template."""
        body, request_id = await self._read(ChatRequest, request), _request_id(request)
        limit = self._config.default_max_tokens
        asked = asked_chat(body, request_id=request_id, default_max_tokens=limit)
        return await self._answer(request, asked, Chat())

    async def completion(self, request: Request) -> Response:
        """Goes on from a text as it is, or from token ids."""
        body, request_id = await self._read(CompletionRequest, request), _request_id(request)
        asked = asked_completion(body, request_id=request_id)
        return await self._answer(request, asked, Completion())

    async def models(self, request: Request) -> Response:
        """All models that can be asked."""
        models = await unless_gone(request.receive, self._client_of(request).models())
        return _json({"object": "list", "data": [_model(info) for info in models]})

    async def model(self, request: Request) -> Response:
        """One model."""
        name = request.path_params["name"]
        if not name:
            raise HTTPException(404)
        client = self._client_of(request)
        return _json(_model(await unless_gone(request.receive, client.model_info(name))))

    async def health(self, request: Request) -> Response:
        """200 where a router answers and has a model to ask, else 503."""
        with suppress(AccessError):  # a router that asks who this is, answers
            if not await unless_gone(request.receive, self._probe.models()):
                raise Unavailable("the router has no target yet")
        return _json({"status": "ok"})

    def _client_of(self, request: Request) -> AsyncClient:
        self._token.refresh()
        return self._client.with_token(_token(request) or self._token.value)

    async def _read(self, kind: type[R], request: Request) -> R:
        config = self._config
        body = await read_body(
            request.stream(),
            request.headers,
            limit=config.max_body_bytes,
            timeout_s=config.body_timeout_s,
        )
        return understood(kind, parameters(body, kind.model_fields.keys()))

    async def _answer(self, request: Request, asked: Asked, style: Style) -> Response:
        client = self._client_of(request)
        with within(_carrier(request)):
            if asked.stream:
                return await self._stream(request, client, asked, style)
            answer = client.generate(asked.prompt, **self._options(asked))
            result = await unless_gone(request.receive, answer)
        said = Said(result.text, result.logprobs)
        envelope = self._envelope(style, asked.request_id, result.prompt.model)
        whole = envelope.around(
            style.object,
            style.whole(said, result.finish_reason),
            usage=usage(result.stats),
            metrics=metrics(result.stats),
        )
        return _json(whole, headers=_shown_id(request, asked.request_id))

    async def _stream(
        self, request: Request, client: AsyncClient, asked: Asked, style: Style
    ) -> Response:
        """The first part is waited for: until then a refusal still has a status of its own."""
        stream = client.stream(asked.prompt, **self._options(asked))
        first = await unless_gone(request.receive, stream.__anext__())
        assert first.prompt is not None
        envelope = self._envelope(style, asked.request_id, first.prompt.model)
        events = Events(style, envelope, include_usage=asked.include_usage)
        return EventStream(events.of(stream, first), _shown_id(request, asked.request_id))

    def _options(self, asked: Asked) -> RequestOptions:
        return {**asked.options, "timeout_s": self._config.timeout_s}

    def _envelope(self, style: Style, request_id: str, model: str) -> Envelope:
        return Envelope(style.prefix + request_id, int(self._wall_s()), model)


def make_app(front: Front) -> FastAPI:
    """The routes, and errors in one format. No page of documentation: it would load scripts from
    elsewhere; the description is at /openapi.json."""
    app = FastAPI(
        title="Slipstream",
        version=slipstream.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    posts = {"/v1/chat/completions": front.chat, "/v1/completions": front.completion}
    gets = {"/v1/models": front.models, "/v1/models/{name:path}": front.model}
    for path, serve in posts.items():
        app.add_api_route(path, serve, methods=["POST"], response_model=None)
    for path, serve in {**gets, "/health": front.health}.items():
        app.add_api_route(path, serve, methods=["GET"], response_model=None)
    for kind, handle in _HANDLERS.items():
        app.add_exception_handler(kind, handle)
    return described(
        app, {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest}
    )


def _refused(request: Request, error: Any) -> Response:
    return _problem(request, error.problem)


def _failed(request: Request, error: Any) -> Response:
    problem = problem_of(error)
    response = _problem(request, problem)
    if problem.status == 500:
        name = response.headers.get(REQUEST_ID, "")[:MAX_NAME_LENGTH]
        _LOG.error("request %s failed: %s", name, error)
    return response


def _gone(_: Request, error: Any) -> Response:
    return Response(status_code=CLIENT_CLOSED)


def _no_route(request: Request, error: Any) -> Response:
    where = f"{request.method} {request.url.path[:200]}"
    known = {404: f"there is no {where} here", 405: f"{where} is not allowed; try another method"}
    message = known.get(error.status_code, str(error.detail))
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    problem = Problem(error.status_code, message, code, headers=error.headers or {})
    return _problem(request, problem)


def _bug(request: Request, error: Any) -> Response:
    message = "the server failed in a way that it did not foresee"
    return _problem(request, Problem(500, message, "internal_error"))


_HANDLERS: dict[type[Exception], Any] = {
    Refused: _refused,
    SlipstreamError: _failed,
    CallerGone: _gone,
    HTTPException: _no_route,
    Exception: _bug,
}


def _problem(request: Request, problem: Problem) -> Response:
    headers = {**problem.headers, **_shown_id(request, problem.headers.get(REQUEST_ID))}
    return _json(problem.body(), status=problem.status, headers=headers)


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(value), status, headers, media_type="application/json")


def _model(info: ModelInfo) -> dict[str, Any]:
    """A model as OpenAI has it, the context's length as vLLM does; when it was made is unknown."""
    about = {"id": info.model, "object": "model", "created": 0, "owned_by": "slipstream"}
    return {**about, "max_model_len": info.limits.context_length}


def _request_id(request: Request) -> str:
    """The caller's own name for the request, or a random one.

    Raises `Refused` for two names, `InvalidRequest` for one that can't be.
    """
    given = request.headers.getlist(IDEMPOTENCY_KEY)
    if len(given) > 1:
        message = f"{IDEMPOTENCY_KEY} is given {len(given)} times, but a request has one name"
        raise Refused(message, code="invalid_value")
    name = given[0] if given else ""
    check_name(IDEMPOTENCY_KEY, name)
    return name or uuid4().hex


def _shown_id(request: Request, request_id: str | None) -> dict[str, str]:
    """The id for logs as the caller or its proxy sent it; else the request's own, if it has one."""
    shown = request.headers.get(REQUEST_ID, request_id)
    return {} if shown is None else {REQUEST_ID: shown}


def _token(request: Request) -> str | None:
    """What the caller shows; None for nothing. Raises `Refused`."""
    kind, _, token = request.headers.get("authorization", "").strip().partition(" ")
    token = token.strip()
    if (kind and kind.lower() != _BEARER) or not (token.isascii() and token.isprintable()):
        message = "the authorization must be a bearer token of printable ASCII"
        raise Refused(message, code="invalid_api_key", status=401)
    return token or None


def _carrier(request: Request) -> Carrier | None:
    """Where the caller stands in a trace."""
    parent = request.headers.get("traceparent")
    return None if parent is None else Carrier(parent, request.headers.get("tracestate", ""))
