"""Every RPC there is, read from the descriptors of the protos."""

from dataclasses import dataclass

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from slipstream.rpc.v1 import draft_pb2, generation_pb2, target_pb2

_FILES = {"target": target_pb2, "draft": draft_pb2, "router": generation_pb2}


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of one role."""

    role: str
    name: str
    path: str
    request: type[Message]
    is_stream: bool
    """Whether the caller sends a stream."""


def _methods() -> dict[str, Method]:
    found = {}
    for role, file in _FILES.items():
        (service,) = file.DESCRIPTOR.services_by_name.values()
        for at in service.methods:
            request = GetMessageClass(at.input_type)
            path = f"/{service.full_name}/{at.name}"
            found[at.name] = Method(role, at.name, path, request, at.client_streaming)
    return found


METHODS = _methods()


def of_role(role: str) -> list[Method]:
    """The RPCs of a role."""
    return [method for method in METHODS.values() if method.role == role]
