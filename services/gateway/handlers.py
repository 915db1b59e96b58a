"""Errors as responses, whatever raises them; JSON out."""

import logging
from typing import Any

from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from slipstream.core.errors import SlipstreamError
from slipstream.core.request.request import MAX_NAME_LENGTH
from slipstream.gateway.errors import HttpError, http_error
from slipstream.gateway.http_io import as_json

CLIENT_CLOSED = 499
"""Status for a client that has left."""
REQUEST_ID = "x-request-id"
"""Header for logs: proxies set it, and may pass the same one on with several requests."""
_LOG = logging.getLogger("slipstream.http")


def shown_id(request: Request, request_id: str | None) -> dict[str, str]:
    """Return the id for logs, as the client or its proxy sent it, or else the request's own."""
    shown = request.headers.get(REQUEST_ID, request_id)
    return {} if shown is None else {REQUEST_ID: shown}


def _error(request: Request, error: Any) -> Response:
    headers = {**error.headers, **shown_id(request, error.headers.get(REQUEST_ID))}
    return json_response(error.body(), status=error.status, headers=headers)


def _failed(request: Request, error: Any) -> Response:
    response = _error(request, http_error(error))
    if response.status_code == 500:
        name = response.headers.get(REQUEST_ID, "")[:MAX_NAME_LENGTH]
        _LOG.error("request %s failed: %s", name, error)
    return response


def _gone(_: Request, error: Any) -> Response:
    return Response(status_code=CLIENT_CLOSED)


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
    ClientDisconnect: _gone,
    HTTPException: _no_route,
    Exception: _bug,
}


def json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(as_json(value), status, headers, media_type="application/json")
