"""Every text of every message to a router at 4 MiB: it answers or refuses, and its loop goes on."""

import re
from itertools import product

import grpc
import pytest
from grpc_health.v1 import health_pb2

from slipstream.rpc.v1 import generation_pb2 as pb
from support.models.tiny_checkpoint import change_config
from support.services.fleet import routed, running, save_models, target_worker

MOST = (4 << 20) - 4096
SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"]
TEXTS = {
    "letters": lambda size: "a b " * (size // 4),
    "JSON": lambda size: '{"a":[' + "{}," * ((size - 12) // 3) + "{}]}",
    "deep JSON": lambda size: '{"a":' + "[" * (size // 2 - 8) + "]" * (size // 2 - 8) + "}",
}
CODES = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")
USUAL = {"role": "user", "content": "x", "name": "f", "arguments": "{}", "session_id": "s"}
"""Of fields without which a message is refused before others of it are read."""


def texts_of(kind, path=()):
    """The paths of all fields of a kind of message that are texts or bytes, within others too."""
    for field in kind.fields:
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            yield (*path, field.name)
        elif field.message_type is not None:
            yield from texts_of(field.message_type, (*path, field.name))


CASES = {
    f"{method.name}.{'.'.join(path)}": (method, path)
    for method in SERVICE.methods
    for path in texts_of(method.input_type)
}


def put(message, path, text):
    """Set the field at the path; messages on the way have their usual fields."""
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        key, value = (text, "x") if rest == ["key"] else ("name", text)
        getattr(message, name)[key] = value
    elif rest:
        inner = getattr(message, name)
        inner = inner if not hasattr(inner, "add") else inner.add()
        for usual, value in USUAL.items():
            if usual in inner.DESCRIPTOR.fields_by_name:
                setattr(inner, usual, value)
        put(inner, rest, text)
    elif hasattr(getattr(message, name), "append"):
        getattr(message, name).append(text)
    else:
        setattr(message, name, text)


def requests(method, path):
    """Messages that are fine but for a text of megabytes at the path."""
    for make in TEXTS.values():
        message = pb.__dict__[method.input_type.name]()
        generation = message.generation if hasattr(message, "generation") else message
        if hasattr(generation, "prompt"):
            generation.prompt.text = "x"
        put(message, path, make(MOST))
        yield message.SerializeToString()


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A model with tools in its template, and a context into which megabytes might fit."""
    folder = save_models(tmp_path_factory.mktemp("long"))
    change_config(folder, max_position_embeddings=100_000)
    (folder / "chat_template.jinja").write_text("{{ tools | tojson }}{{ messages | tojson }}")
    return folder


@pytest.fixture
async def router(long_model):
    async with (
        running(worker := target_worker(long_model)),
        routed([worker]) as client,
        grpc.aio.insecure_channel(client.address) as channel,
    ):
        yield channel


def test_the_law_is_about_every_field():
    assert "Generate.generation.prompt.chat.messages.tool_calls.arguments" in CASES
    assert "Tokenize.prompt.chat.messages.fields.key" in CASES
    assert len(CASES) > 50


async def outcome(channel, method, request):
    """The status of a call; health answers at each of its messages, and a refusal is a sentence."""
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    check = health_pb2.HealthCheckRequest(service=SERVICE.full_name).SerializeToString()
    call = channel.unary_stream(f"/{SERVICE.full_name}/{method}")(request)
    try:
        assert await health(check, timeout=20)
        while await call.read() is not grpc.aio.EOF:
            assert await health(check, timeout=20)
    except grpc.aio.AioRpcError as error:
        assert len(error.details()) < 1000
        assert re.search(r"\w+ \w+ \w+", error.details()), error.details()
        return error.code().name
    return "OK"


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
async def test_a_text_of_megabytes_anywhere_holds_up_nothing(router, method):
    """The watchdog of loops is in every test here."""
    cases = [(name, path) for name, (at, path) in CASES.items() if at.name == method]
    for name, path in cases:
        for request in requests(SERVICE.methods_by_name[method], path):
            status = await outcome(router, method, request)
            assert (name, status) in product([name], CODES)
