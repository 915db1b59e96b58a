"""Spans as values of OTLP/JSON: what a line of a trace file, and a collector, take.

(OpenTelemetry protocol 1.x, JSON Protobuf encoding: ids in hex, 64-bit integers as text, kinds and
codes as numbers.) Knows no files.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
Json = dict[str, Any]
Scoped = dict[InstrumentationScope | None, list[ReadableSpan]]


def traces_data(spans: Sequence[ReadableSpan]) -> Json:
    """The spans as a TracesData message, by resource and scope."""
    resources: dict[Resource, Scoped] = {}
    for span in spans:
        scopes = resources.setdefault(span.resource, {})
        scopes.setdefault(span.instrumentation_scope, []).append(span)
    return {"resourceSpans": [_resource(*pair) for pair in resources.items()]}


def _resource(resource: Resource, scopes: Scoped) -> Json:
    values = {
        "resource": {"attributes": _attributes(resource.attributes)},
        "scopeSpans": [_scope(*pair) for pair in scopes.items()],
    }
    return values | _said(schemaUrl=resource.schema_url)


def _scope(scope: InstrumentationScope | None, spans: list[ReadableSpan]) -> Json:
    values: Json = {"scope": {}, "spans": [_span(span) for span in spans]}
    if scope is None:
        return values
    about = {"name": scope.name, "attributes": _attributes(scope.attributes)}
    values["scope"] = _said(**about, version=scope.version)
    return values | _said(schemaUrl=scope.schema_url)


def _span(span: ReadableSpan) -> Json:
    parent = span.parent
    return {
        **_place(span.get_span_context()),
        **_said(parentSpanId=None if parent is None else f"{parent.span_id:016x}"),
        "flags": _flags(parent),
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP's zero is "unspecified"
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        **_said(
            attributes=_attributes(span.attributes),
            droppedAttributesCount=span.dropped_attributes,
            events=[_event(event) for event in span.events],
            droppedEventsCount=span.dropped_events,
            links=[_link(link) for link in span.links],
            droppedLinksCount=span.dropped_links,
        ),
        "status": _said(code=span.status.status_code.value, message=span.status.description),
    }


def _event(event: Event) -> Json:
    return {
        "timeUnixNano": str(event.timestamp),
        "name": event.name,
        **_said(
            attributes=_attributes(event.attributes),
            droppedAttributesCount=event.dropped_attributes,
        ),
    }


def _link(link: Link) -> Json:
    return {
        **_place(link.context),
        "flags": _flags(link.context),
        **_said(
            attributes=_attributes(link.attributes),
            droppedAttributesCount=link.dropped_attributes,
        ),
    }


def _place(context: SpanContext | None) -> Json:
    assert context is not None  # every span of the SDK has one
    state = ",".join(f"{key}={value}" for key, value in context.trace_state.items())
    ids = {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}
    return ids | _said(traceState=state)


def _flags(parent: SpanContext | None) -> int:
    """Whether the parent, or what is linked to, is in another process."""
    is_remote = parent is not None and parent.is_remote
    return _HAS_IS_REMOTE | (_IS_REMOTE if is_remote else 0)


def _attributes(attributes: Mapping[str, Any] | None) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in (attributes or {}).items()]


def _value(value: Any) -> Json:
    """Raises `TypeError` for what no attribute can be."""
    match value:
        case None:
            return {}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case bool() | str() | int() | float():
            return _plain(value)
        case Mapping():
            return {"kvlistValue": {"values": _attributes(value)}}
        case Sequence():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
    raise TypeError(f"an attribute is {type(value).__name__}, which OTLP has no value for")


def _plain(value: bool | str | int | float) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case str():
            return {"stringValue": value}
        case int():
            return {"intValue": str(value)}
    if math.isfinite(value):
        return {"doubleValue": value}
    return {"doubleValue": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _said(**values: Any) -> Json:
    """What is not the default; the rest goes without saying."""
    return {name: value for name, value in values.items() if value}
