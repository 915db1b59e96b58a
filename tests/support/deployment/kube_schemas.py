"""Validation of documents as Kubernetes does it, by its schemas and those of custom kinds.
The newest three versions are asked, in their strict form, where an unknown field is a fault."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

CUSTOM = {
    path.stem: path
    for path in (Path(__file__).parent.parent.parent / "helm/schemas").glob("*.json")
}
"""Kinds that come with an operator: what is no built-in kind must be one of these."""
_SHIPPED = files("kubernetes_validate") / "kubernetes-json-schema"
_FOLDERS = (re.fullmatch(r"v([\d.]+)-local-strict", folder.name) for folder in _SHIPPED.iterdir())
_VERSIONS = [tuple(map(int, at[1].split("."))) for at in _FOLDERS if at]
NEWEST = tuple(".".join(map(str, at)) for at in sorted(_VERSIONS)[-3:])


def faults(document: Mapping[str, Any], version: str) -> list[str]:
    """Return the errors of a document in that version of Kubernetes, each with its path."""
    validator = _validator(version, document["kind"], document["apiVersion"])
    if validator is None:
        return [f"{document['kind']} of {document['apiVersion']} is unknown in {version}"]
    found = validator.iter_errors(document)
    return sorted(f"{'.'.join(map(str, error.path))}: {error.message}" for error in found)


def pod_faults(template: Mapping[str, Any], version: str) -> list[str]:
    """Return the errors of the pod of a template, with what schemas of custom kinds leave open."""
    return faults({"apiVersion": "v1", "kind": "Pod", **template}, version)


@cache
def _validator(version: str, kind: str, api: str) -> Draft202012Validator | None:
    schema = _schema(version, kind, api)
    return schema and Draft202012Validator(schema, registry=_registry(version))


def _schema(version: str, kind: str, api: str) -> Any:
    if kind in CUSTOM:
        schema = json.loads(CUSTOM[kind].read_text())
        return schema if schema["properties"]["apiVersion"]["const"] == api else None
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)
    file = _folder(version) / f"{kind.lower()}-{group}.json"
    return json.loads(file.read_text()) if file.is_file() else None


@cache
def _registry(version: str) -> Any:
    definitions = json.loads((_folder(version) / "_definitions.json").read_text())
    return Resource.from_contents(definitions) @ Registry()


def _folder(version: str) -> Any:
    return _SHIPPED / f"v{version}-local-strict"


def places(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value within a document, with its path."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for at, part in inner:
        yield from places(part, f"{path}.{at}")
