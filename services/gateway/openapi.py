"""The description of the API at /openapi.json, from the models that bodies are checked with."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"


def described(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> FastAPI:
    """The application, whose description says what these paths' POST takes."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app, bodies)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI has it
    return app


def _description(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    about = get_openapi(title=app.title, version=app.version, routes=app.routes)
    kinds: Any = [(kind, "validation") for kind in bodies.values()]
    refs, definitions = models_json_schema(kinds, ref_template=_REF)
    about.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    for path, kind in bodies.items():
        schema = refs[(kind, "validation")]
        about["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return about
