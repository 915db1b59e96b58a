"""The page at `/`: its files, which ask for nothing from elsewhere."""

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> list[BaseRoute]:
    """Return a route for each file of the page."""
    folder = files("slipstream_gateway") / "page"
    return [_route(item.name, item.read_bytes()) for item in folder.iterdir()]


def _route(name: str, content: bytes) -> Route:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": tag}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route("/" if name == "index.html" else f"/page/{name}", serve, methods=["GET"])
