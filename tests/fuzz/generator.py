"""Cases out of a seed: calls with messages of every kind, and HTTP requests."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from fuzz import messages
from fuzz.case import HTTP, Case, Method, of_role, recorded
from fuzz.files.mutations import some_bytes, value
from slipstream_gateway.body import ChatRequest, CompletionRequest
from slipstream_gateway.errors import IGNORED, NEUTRAL

GATEWAY = "gateway"
ROLES = ("target", "draft", "router", GATEWAY)
MANNERS = ("answered", "answered", "answered", "flood", "cancel", "abandon", "twice")
PATHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (
        ChatRequest,
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    ),
    "/v1/completions": (CompletionRequest, {"prompt": "x", "max_tokens": 2}),
}
_NAMES = (
    *("type", "text", "role", "content", "mode", "json", "regex", "schema", "json_schema", "name"),
    *("choice", "max_nodes", "widths", "threshold", "include_usage", "function", "tool_calls"),
)
_HEADERS = (
    *(
        b"authorization: Bearer x",
        b"authorization: Basic eDp5",
        b"x-request-id: \xff",
        b"expect: 1",
    ),
    *(b"x-request-id: " + b"r" * 5000, b"x-request-id: r1", b"traceparent: 00-0-0-00", b"a: \x00"),
    *(b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"content-encoding: gzip"),
    *(b"transfer-encoding: chunked", b"content-length: 99999999999", b"content-length: -1"),
    *(b"h" * 70_000 + b": x", b"connection: upgrade", b"content-type: application/json; charset=x"),
)


class Generator:
    """Makes the cases of a batch: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._recorded = recorded()

    def batch(self, role: str, number: int, size: int) -> list[Case]:
        random = Random(f"{self._seed}/{role}/{number}")
        make = self._http if role == GATEWAY else self._calls
        cases: list[Case] = []
        count = 0
        for case in make(role, random):
            cases.append(case)
            count += 1 if case.to == HTTP else len(case.parts)
            if count >= size:
                return cases
        raise AssertionError("cases do not end")

    def _calls(self, role: str, random: Random) -> Iterator[Case]:
        methods = of_role(role)
        heavy = [method for method in methods if method.name in self._recorded] or methods
        while True:
            yield self._call(random.choice(heavy if random.random() < 0.9 else methods), random)

    def _call(self, method: Method, random: Random) -> Case:
        calls = self._recorded.get(method.name, [()])
        call = random.choice(calls)
        manner = random.choice(MANNERS)
        if not method.is_stream:
            valid = [parts[0] for parts in calls if parts]
            data = messages.message_bytes(method.request, valid, random)
            return Case(method.role, method.name, _kind(data, valid), manner, (data,))
        valid = [part for parts in calls for part in parts]
        parts = list(call[:1]) if random.random() < 0.7 else []
        if random.random() < 0.3:
            parts = list(call)
            random.shuffle(parts)
        for _ in range(random.choice((1, 2, 3, 5))):
            parts.insert(
                random.randrange(len(parts) + 1) if random.random() < 0.2 else len(parts),
                messages.message_bytes(method.request, valid, random),
            )
        return Case(method.role, method.name, "stream", manner, tuple(parts))

    def _http(self, role: str, random: Random) -> Iterator[Case]:
        while True:
            kind, body = _body(random)
            manner = random.choice(("answered", "answered", "answered", "abandon", "cancel"))
            yield Case(role, HTTP, kind, manner, _request(kind, body, random))


def _kind(data: bytes, valid: list[bytes]) -> str:
    return "recorded" if data in valid else "huge" if len(data) > 10_000 else "mutated"


def _body(random: Random) -> tuple[str, bytes]:
    """A body: JSON with something wrong, broken JSON, or none."""
    choice = random.random()
    if choice < 0.05:
        return "noise", random.randbytes(random.randrange(300))
    if choice < 0.08:
        opening = random.choice((b"[", b'{"a":', b'{"messages":['))
        return "deep", opening * random.choice((100, 1_000, 100_000))
    _, (kind, valid) = random.choice(list(PATHS.items()))
    body = dict(valid)
    names = [*kind.model_fields, *NEUTRAL, *IGNORED]
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        body[random.choice(names)] = _value(random)
    if choice < 0.085:
        body[random.choice(names)] = ["x" * 10] * random.choice((10_000, 300_000))
        return "huge", json.dumps(body).encode()
    data = json.dumps(body).encode()
    return ("broken", some_bytes(random, data)) if choice < 0.2 else ("json", data)


def _value(random: Random, depth: int = 0) -> Any:
    choice = random.random()
    if choice < 0.05:
        return random.choice((*messages.SCHEMAS, *messages.REGEXES))
    if depth > 4 or choice < 0.5:
        return value(random)
    if choice < 0.7:
        return [_value(random, depth + 1) for _ in range(random.randrange(3))]
    return {name: _value(random, depth + 1) for name in random.sample(_NAMES, random.randrange(4))}


def _request(kind: str, body: bytes, random: Random) -> tuple[bytes, ...]:
    """A request in parts: mostly whole, sometimes cut, or with headers that do not fit."""
    path = random.choice((*PATHS, *PATHS, *PATHS, "/v1/models", "/v1/models/x", "/health", "/x"))
    verb = b"POST" if random.random() < 0.9 else random.choice((b"GET", b"PUT", b"\xff", b"HEAD"))
    line = verb + b" " + path.encode() + b" HTTP/1.1"
    length = len(body) if random.random() < 0.95 else random.choice((0, 1, len(body) + 5))
    headers = [line, b"host: x", b"connection: close", b"content-length: %d" % length]
    headers += [b"content-type: application/json"] if random.random() < 0.97 else []
    headers += random.sample(_HEADERS, random.choice((0, 0, 0, 1, 3)))
    head = b"\r\n".join(headers) + b"\r\n\r\n"
    whole = head + body
    if random.random() < 0.05:
        whole = some_bytes(random, whole)
    if random.random() < 0.1 and whole:
        at = random.randrange(len(whole))
        return (whole[:at], whole[at:])
    return (whole,)
