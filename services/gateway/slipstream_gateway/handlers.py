"""Headers of requests, the origins that may send them, errors as responses, and the page at `/`."""

import hashlib
import logging
import re
from collections.abc import Collection
from importlib.resources import files
from typing import Any
from uuid import uuid4

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slipstream.core.errors import SlipstreamError
from slipstream.core.request.request import MAX_NAME_LENGTH, check_name
from slipstream_gateway.config import ANY_ORIGIN
from slipstream_gateway.errors import HttpError, http_error, refused
from slipstream_gateway.http_io import as_json

CLIENT_CLOSED = 499
IDEMPOTENCY_KEY = "Idempotency-Key"
"""Header with the request's id: sent again under the same, it is the same request."""
REQUEST_ID = "x-request-id"
"""Header for logs: proxies set it, and may pass the same one on with several requests."""
_BEARER = "bearer"
_HOST = re.compile(r"https?://[^/]*", re.IGNORECASE)
"""Beginning of the path of a request as proxies get it."""
_BARE = ("/chat/completions", "/completions", "/responses", "/models")
"""Paths of clients whose base URL lacks `/v1`."""
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _PAGE_POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_LOG = logging.getLogger("slipstream.http")


def shown_id(request: Request, request_id: str | None) -> dict[str, str]:
    """Return the id for logs, as the client or its proxy sent it, or else the request's own."""
    shown = request.headers.get(REQUEST_ID, request_id)
    return {} if shown is None else {REQUEST_ID: shown}


def _error(request: Request, error: Any) -> Response:
    headers = {**error.headers, **shown_id(request, error.headers.get(REQUEST_ID))}
    headers |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return json_response(error.body(), status=error.status, headers=headers)


def _failed(request: Request, error: Any) -> Response:
    response = _error(request, http_error(error, getattr(request.state, "body", None)))
    if response.status_code == 500:
        name = response.headers.get(REQUEST_ID, "")[:MAX_NAME_LENGTH]
        _LOG.error("request %s failed: %s", name, error)
    return response


def _no_route(request: Request, error: Any) -> Response:
    where, status = f"{request.method} {request.url.path[:200]}", error.status_code
    known = {404: f"there is no {where} here", 405: f"{where} is not allowed; try another method"}
    message = known.get(status, str(error.detail))
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "invalid_request")
    return _error(request, HttpError(message, code=code, status=status, headers=error.headers))


def _bug(request: Request, error: Any) -> Response:
    message = "the server failed in a way that it did not foresee"
    return _error(request, HttpError(message, code="internal_error", status=500))


HANDLERS: dict[type[Exception], Any] = {
    HttpError: _error,
    SlipstreamError: _failed,
    ClientDisconnect: lambda request, error: Response(status_code=CLIENT_CLOSED),
    HTTPException: _no_route,
    Exception: _bug,
}


def json_response(value: Any, *, status: int = 200, headers: Any = None) -> Response:
    return Response(as_json(value), status, headers, media_type="application/json")


class Front:
    """The application as it is served: to pages of the allowed origins, with HEAD where there is
    GET, and at each path also without its `/v1`, behind the front's own address, and where slashes
    are doubled or at its end. The server leaves out the body of HEAD."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        if origins:
            self._app = CORSMiddleware(
                app,
                allow_origins=tuple(origins),
                allow_methods=("GET", "HEAD", "POST"),
                allow_headers=("*",),
                allow_credentials=ANY_ORIGIN not in origins,
                expose_headers=(REQUEST_ID, "retry-after"),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = "/" + "/".join(filter(None, _HOST.sub("", scope["path"]).split("/")))
        path = f"/v1{path}" if path.startswith(_BARE) else path
        await self._app({**scope, "method": method, "path": path}, receive, send)


def request_id_of(request: Request) -> str:
    """Return the client's own id for the request, or a random one. Raises `HttpError` for two."""
    given = request.headers.getlist(IDEMPOTENCY_KEY)
    if len(given) > 1:
        raise refused(IDEMPOTENCY_KEY, f"is given {len(given)} times, but a request has one name")
    name = given[0] if given else ""
    check_name(IDEMPOTENCY_KEY, name)
    return name or uuid4().hex


def token_of(request: Request) -> str | None:
    """Return the bearer token, or the API key; None without one. Raises `HttpError`."""
    headers = request.headers
    kind, _, token = headers.get("authorization", "").strip().partition(" ")
    token = token.strip() if kind else headers.get("x-api-key", headers.get("api-key", "")).strip()
    if (kind and kind.lower() != _BEARER) or not (token.isascii() and token.isprintable()):
        message = "the authorization must be a bearer token of printable ASCII"
        raise HttpError(message, code="invalid_api_key", status=401)
    return token or None


def page_routes() -> list[BaseRoute]:
    """Return a route for each file of the page."""
    folder = files("slipstream_gateway") / "page"
    return [_route(item.name, item.read_bytes()) for item in folder.iterdir()]


def _route(name: str, content: bytes) -> Route:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_PAGE_HEADERS, "etag": tag}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route("/" if name == "index.html" else f"/page/{name}", serve, methods=["GET"])
