"""JSON schemas as grammars take them: each reference is a pointer, each keyword has an effect.

Only what is at a position of a schema is changed; data in `const`, `enum`, `default` and `examples`
stays as it is.
"""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from slipstream.core.errors import InvalidRequest

_HOLDERS = {
    *("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema"),
    *("else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords with a schema, or a list of them."""
_NAMED = {
    *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"),
    "properties",
}
"""Keywords with schemas by name."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{"uniqueItems": (False,), "not": (False,), "propertyNames": ({}, True, {"type": "string"})},
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), ({}, True)),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
}
"""Keywords that grammars do not have, and the values that allow everything."""
_FORMATS = {
    *("date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4"),
    *("ipv6", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time"),
    *("uri", "uri-reference", "uri-template", "uuid"),
}
"""Formats of JSON Schema; any other one only describes, such as pydantic's `path`."""
_KINDS = {
    "object": {"properties", "required", "additionalProperties", "patternProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
"""Keywords of one type."""
_CLOSED = {"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not"}
"""Keywords that say themselves what there may be."""
_DATA = {"const", "default"}
_LEAST = 1024 - 2**63
"""The least bound that grammars count with, exact as a float."""
_NAMES = {"$anchor", "$dynamicAnchor", "$recursiveAnchor"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
_SHOWN = 80
"""Characters of a name in an error."""


def placed_schema(schema: Any, place: str, what: str, *, is_typed: bool = False) -> Any:
    """Return a schema whose references are right where it is at this place of another one, as
    `#/$defs/a`, and whose keywords that say nothing, as null, are left out. With `is_typed` what
    has keywords of one type, such as properties, and no type has that type, as its author means.

    Raises `InvalidRequest` for a reference that leads nowhere in the schema, or that depends on
    where it is read from; `what` names the schema.
    """
    try:
        return _Document(schema, place, what, is_typed).copy(schema)
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply") from None


class _Document:
    """A schema, and what is known of the schemas in it: by identity, as data may look alike."""

    def __init__(self, root: Any, place: str, what: str, is_typed: bool) -> None:
        self._root, self._place, self._what, self._is_typed = root, place, what, is_typed
        draft = root.get("$schema") if isinstance(root, dict) else None
        self._id = "id" if "draft-04" in str(draft) else "$id"
        self._schemas: dict[int, tuple[dict[str, Any], str, str]] = {}
        """Each with its pointer and the URI that its references are relative to."""
        self._resources: dict[str, str] = {"": ""}
        self._anchors: dict[tuple[str, str], str] = {}
        """Pointers by URI and name."""
        self._dynamic: list[str] = []
        """Names of anchors that depend on where they are read from."""
        self._add(root, "", "")
        self._targets: dict[int, dict[str, str]] = {}
        while news := [it for key, it in self._schemas.items() if key not in self._targets]:
            for schema, pointer, base in news:
                self._targets[id(schema)] = self._resolved(schema, pointer, base)

    def _add(self, schema: Any, pointer: str, base: str) -> None:
        """Add a schema and all that it holds."""
        if not isinstance(schema, dict) or id(schema) in self._schemas:
            return
        base = self._named(schema, pointer, base)
        self._schemas[id(schema)] = schema, pointer, base
        for keyword, value in schema.items():
            where = f"{pointer}/{_escaped(keyword)}"
            if keyword in _HOLDERS:
                self._add(value, where, base)
            for name, item in _held(keyword, value):
                self._add(item, f"{where}/{_escaped(str(name))}", base)

    def _named(self, schema: dict[str, Any], pointer: str, base: str) -> str:
        """Add the names of a schema; return the URI that its references are relative to."""
        names = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
        given = schema.get(self._id)
        if isinstance(given, str) and given.startswith("#"):  # an anchor of drafts before 2019
            names.append(given[1:])
        elif isinstance(given, str):
            base = urldefrag(urljoin(base, given)).url
            self._resources[base] = pointer
        for name in names:
            if isinstance(name, str):
                self._anchors[base, name] = pointer
        self._dynamic += [name for name in names[1:2] if isinstance(name, str)]
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.append("")
        return base

    def _resolved(self, schema: dict[str, Any], pointer: str, base: str) -> dict[str, str]:
        """Return the pointers of a schema's references by keyword; add what they lead to."""
        given = {it: schema[it] for it in _REFERENCES if isinstance(schema.get(it), str)}
        if len(given) > 1:
            raise self._error(*next(iter(given.items())), pointer, "is beside another reference")
        return {it: self._target(it, given[it], pointer, base) for it in given}

    def _target(self, keyword: str, reference: str, pointer: str, base: str) -> str:
        uri, fragment = urldefrag(reference)
        uri = urljoin(base, uri) if uri else base
        name = unquote(fragment)
        if keyword != "$ref" and self._dynamic.count(name) > 1:
            why = "depends on where it is read from, which can't be followed"
            raise self._error(keyword, reference, pointer, why)
        start = self._resources.get(uri)
        if start is not None and name.startswith("/"):
            start += name
        elif name:
            start = self._anchors.get((uri, name))
        try:
            if start is None:
                raise KeyError
            found = self._root
            for part in start.split("/")[1:]:
                found = found[int(part) if isinstance(found, list) else _unescaped(part)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._error(keyword, reference, pointer, "leads to no schema in it") from None
        self._add(found, start, uri)
        return start

    def copy(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.copy(item) for item in value]
        if not isinstance(value, dict):
            return value
        if id(value) not in self._schemas:
            return {name: self.copy(item) for name, item in value.items()}
        copy = {
            name: self.copy(item) if name in _DATA else _number(name, self.copy(item))
            for name, item in value.items()
            if name not in _NAMES | {self._id} and not _is_absent(name, value)
        }
        for keyword, target in self._targets[id(value)].items():
            del copy[keyword]
            copy["$ref"] = self._place + quote(target, safe="/~!$&'()*+,;=:@")
        if self._is_typed and not copy.keys() & _CLOSED:
            kinds = [kind for kind, keywords in _KINDS.items() if copy.keys() & keywords]
            copy |= {"type": kinds} if kinds else {}
        return copy

    def _error(self, keyword: str, reference: str, pointer: str, why: str) -> InvalidRequest:
        where = f"#{pointer}"[:_SHOWN]
        return InvalidRequest(
            f"{self._what} has {keyword} {reference[:_SHOWN]!r} at {where}: {why}"
        )


def _held(keyword: str, value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the schemas that a keyword holds by name or in a list."""
    if keyword in _NAMED and isinstance(value, dict):
        return value.items()
    return enumerate(value) if keyword in _HOLDERS and isinstance(value, list) else ()


def _is_absent(keyword: str, schema: dict[str, Any]) -> bool:
    """Return whether a keyword has no effect, as null has none. As `default` null is data, and as
    `const` where the type allows it."""
    kinds, value = schema.get("type"), schema[keyword]
    if value is not None:
        is_unknown = keyword == "format" and isinstance(value, str) and value not in _FORMATS
        return is_unknown or value in _NEUTRAL.get(keyword, ())
    is_data = keyword == "default" or (keyword == "const" and (kinds is None or "null" in kinds))
    return not is_data


def _number(keyword: str, value: Any) -> Any:
    """Return a keyword's value: 2 for 2.0, and no bound below those that grammars have."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return max(value, _LEAST) if keyword == "minimum" and isinstance(value, int) else value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")
