"""The HTTP front as an ASGI application: routes, bearer tokens, traces, errors."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

import slipstream
from slipstream.client import AsyncClient, ModelInfo, RequestOptions
from slipstream.core.errors import AccessError, Unavailable
from slipstream.files import ReloadedFiles
from slipstream.telemetry.spans import carrier_in, within
from slipstream_gateway.body import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    R,
    TextRequest,
    TokenizeRequest,
    read_as,
)
from slipstream_gateway.chat import ChatChoice
from slipstream_gateway.choices import texts_of, together, without_output
from slipstream_gateway.config import HttpConfig
from slipstream_gateway.handlers import (
    HANDLERS,
    json_response,
    page_routes,
    request_id_of,
    shown_id,
    token_of,
)
from slipstream_gateway.http_io import (
    AsEvent,
    ChunkEvents,
    Events,
    EventStream,
    error_event,
    read_body,
    unless_gone,
)
from slipstream_gateway.response_job import ResponseJob, refused_event
from slipstream_gateway.responses import ApiFormat, CompletionChoice, Json, metrics, usage
from slipstream_gateway.responses_body import ResponsesRequest
from slipstream_gateway.sdk_options import (
    chat_options,
    completion_options,
    each_answer,
    given_tools,
)

_LONG_BODY = 1 << 16
"""Bytes of a body from which on it is read on a thread, a bounded step at a time."""
_BODIES = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


@dataclass(eq=False)
class Routes:
    """The routes. `client` sends requests to the routers, `probe` health checks."""

    config: HttpConfig
    client: AsyncClient
    probe: AsyncClient
    wall_s: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        files = filter(None, [self.config.token_file])
        self._token = ReloadedFiles(tuple(files), self.config.token, "bearer tokens")

    async def chat(self, request: Request) -> Response:
        """Continue messages, through the model's chat template."""
        body, request_id = await self._read(ChatRequest, request), request_id_of(request)
        options, use = chat_options(body, request_id, self.config.default_max_tokens)
        choice = partial(ChatChoice, use=use)
        style = ApiFormat("chatcmpl-", "chat.completion", "chat.completion.chunk", choice)
        return await self._answer(request, body, options, style)

    async def completion(self, request: Request) -> Response:
        """Continue texts as they are, or token ids."""
        body, request_id = await self._read(CompletionRequest, request), request_id_of(request)
        options = completion_options(body, request_id)
        finding = texts_of(self._client_of(request), body)
        echoes = await unless_gone(request.receive, finding)
        choice = partial(CompletionChoice, echoes=echoes, n=body.n)
        style = ApiFormat("cmpl-", "text_completion", "text_completion", choice)
        return await self._answer(request, body, options, style)

    async def responses(self, request: Request) -> Response:
        """Answer as OpenAI's newer API has it, on top of an earlier response where one is named."""
        body, request_id = await self._read(ResponsesRequest, request), request_id_of(request)
        limit, token = self.config.default_max_tokens, token_of(request) or ""
        job = ResponseJob(body, request_id, token, limit)
        job.options["timeout_s"] = self.config.timeout_s
        client, headers = self._client_of(request), shown_id(request, request_id)
        with within(carrier_in(request.headers)):
            if not body.stream:
                result = await unless_gone(request.receive, job.result(client))
                answer = job.answer(result.prompt, int(self.wall_s()))
                answer.push(result)
                return json_response(answer.whole, headers=headers)
            events = job.events(client, self.wall_s)
            return await self._streamed(request, events, headers, refused_event)

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a prompt, as vLLM has it."""
        body = await self._read(TokenizeRequest, request)
        client, receive = self._client_of(request), request.receive
        info = await unless_gone(receive, client.model_info(body.model))
        is_raw, tools = body.prompt is not None, given_tools(body.tools)
        own: Any = {"tools": tools, "chat_template_kwargs": body.variables, "raw": is_raw}
        work = client.tokenize(body.content, model=info.model, allow_special_tokens=is_raw, **own)
        tokens, limit = await unless_gone(receive, work), info.limits.context_length
        return json_response(
            {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None}
        )

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids, as vLLM has it."""
        body = await self._read(DetokenizeRequest, request)
        text = self._client_of(request).detokenize(body.tokens, model=body.model)
        return json_response({"prompt": await unless_gone(request.receive, text)})

    async def version(self, request: Request) -> Response:
        """Return the version of this server."""
        return json_response({"version": slipstream.__version__})

    async def models(self, request: Request) -> Response:
        """List all models."""
        models = await unless_gone(request.receive, self._client_of(request).models())
        return json_response({"object": "list", "data": [_model(info) for info in models]})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["name"]
        if not name:
            raise HTTPException(404)
        client = self._client_of(request)
        return json_response(_model(await unless_gone(request.receive, client.model_info(name))))

    async def health(self, request: Request) -> Response:
        """Return 200 where a router answers and has a model, else 503."""
        with suppress(AccessError):  # a router that refuses the probe's token answers
            if not await unless_gone(request.receive, self.probe.models()):
                raise Unavailable("the router has no target yet")
        return json_response({"status": "ok"})

    def _client_of(self, request: Request) -> AsyncClient:
        self._token.refresh()
        return self.client.with_token(token_of(request) or self._token.value)

    async def _read(self, kind: type[R], request: Request) -> R:
        body = await read_body(request.stream(), request.headers, self.config)
        is_long = len(body) > _LONG_BODY
        found = await asyncio.to_thread(read_as, kind, body) if is_long else read_as(kind, body)
        request.state.body = found
        return found

    async def _answer(
        self, request: Request, body: TextRequest, options: RequestOptions, style: ApiFormat
    ) -> Response:
        client, request_id = self._client_of(request), options["request_id"]
        options["timeout_s"] = self.config.timeout_s
        headers = shown_id(request, request_id)
        answers = each_answer(body, options)
        with within(carrier_in(request.headers)):
            if body.stream:
                opening = [client.stream(prompt, **item) for prompt, item in answers]
                named = partial(self._envelope, style.prefix + request_id)
                events = ChunkEvents(style, named, body).of(opening)
                return await self._streamed(request, events, headers, error_event)
            work = together([client.generate(prompt, **item) for prompt, item in answers])
            results = await unless_gone(request.receive, work)
        if body.max_tokens == 0:
            results = [without_output(result) for result in results]
        stats = [result.stats for result in results]
        numbered = enumerate(results)
        choices = [style.choice(index, result.prompt).whole(result) for index, result in numbered]
        envelope = self._envelope(style.prefix + request_id, style.object, results[0].prompt.model)
        figures = {"usage": usage(stats, n=body.n), "metrics": metrics(stats)}
        return json_response({**envelope, "choices": choices, **figures}, headers=headers)

    async def _streamed(
        self, request: Request, events: Events, headers: dict[str, str], refused: AsEvent
    ) -> Response:
        """Return a stream of events. Until it begins, a refusal has a status of its own."""
        pause_s = self.config.stream_keep_alive_s
        stream = EventStream(events, headers, keep_alive_s=pause_s, refused=refused)
        await stream.begin(request.receive)
        return stream

    def _envelope(self, name: str, kind: str, model: str) -> Json:
        return {"id": name, "object": kind, "created": int(self.wall_s()), "model": model}


def make_app(routes: Routes, *, has_page: bool = False) -> FastAPI:
    """Return the application. It has no page of documentation, which would load scripts from
    elsewhere; the description is at /openapi.json."""
    app = FastAPI(
        routes=page_routes() if has_page else [],
        title="Slipstream",
        version=slipstream.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    posts = (routes.chat, routes.completion, routes.responses, routes.tokenize, routes.detokenize)
    gets = {
        "/v1/models": routes.models,
        "/v1/models/{name:path}": routes.model,
        "/health": routes.health,
        "/version": routes.version,
    }
    for path, serve in zip(_BODIES, posts, strict=True):
        app.add_api_route(path, serve, methods=["POST"], response_model=None)
    for path, serve in gets.items():
        app.add_api_route(path, serve, methods=["GET"], response_model=None)
    for kind, handle in HANDLERS.items():
        app.add_exception_handler(kind, handle)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]  # as FastAPI has it
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        about = get_openapi(title=app.title, version=app.version, routes=app.routes)
        kinds: list[Any] = [(kind, "validation") for kind in _BODIES.values()]
        refs, models = models_json_schema(kinds, ref_template="#/components/schemas/{model}")
        about.setdefault("components", {}).setdefault("schemas", {}).update(models["$defs"])
        for path, kind in zip(_BODIES, kinds, strict=True):
            about["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": refs[kind]}},
            }
        app.openapi_schema = about
    return app.openapi_schema


def _model(info: ModelInfo) -> dict[str, Any]:
    """Return a model as OpenAI has it, the context's length as vLLM does, and its sampling
    defaults."""
    about = {"id": info.model, "object": "model", "created": 0, "owned_by": "slipstream"}
    limit, defaults = info.limits.context_length, dict(info.sampling_defaults)
    return {**about, "max_model_len": limit, "sampling_defaults": defaults}
