"""JSON schemas as grammars take them: keywords that have no effect are left out."""

from typing import Any
from urllib.parse import quote

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


def effective_schema(schema: Any) -> Any:
    """Return a schema without keywords that have no effect, as null has none.

    Only what is at a position of a schema is changed; data in `const`, `enum`, `default` and
    `examples` stays as it is.
    """
    if isinstance(schema, list):
        return [effective_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _effective(keyword, value)
        for keyword, value in schema.items()
        if not _is_absent(keyword, schema)
    }


def _effective(keyword: str, value: Any) -> Any:
    if keyword == "$ref" and isinstance(value, str):  # a name may have spaces
        return quote(value, safe="#%/~!$&'()*+,;=:@?")
    if keyword in _HOLDERS:
        return effective_schema(value)
    if keyword in _NAMED and isinstance(value, dict):
        return {name: effective_schema(item) for name, item in value.items()}
    return value


def _is_absent(keyword: str, schema: dict[str, Any]) -> bool:
    """Return whether a keyword has no effect, as null has none. As `default` null is data, and as
    `const` where the type allows it."""
    kinds, value = schema.get("type"), schema[keyword]
    if value is not None:
        is_unknown = keyword == "format" and isinstance(value, str) and value not in _FORMATS
        return is_unknown or value in _NEUTRAL.get(keyword, ())
    is_data = keyword == "default" or (keyword == "const" and (kinds is None or "null" in kinds))
    return not is_data
