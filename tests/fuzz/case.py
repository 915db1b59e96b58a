"""One thing that is sent to a service: bytes, how, and to which RPC. Kept as JSON."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from slipstream.rpc.v1 import draft_pb2, generation_pb2, target_pb2

HTTP = "http"
CORPUS = Path(__file__).parent / "corpus"
INCARNATION = "incarnation-0000"
"""Stands for the target's own in what is kept; of the same length."""
TARGET = "127.0.0.1:00000"
"""Stands for the target's address."""
_FILES = {"target": target_pb2, "draft": draft_pb2, "router": generation_pb2}


@dataclass(frozen=True, slots=True)
class Case:
    """Messages of one call; or parts of an HTTP request."""

    role: str
    to: str
    """The RPC's name, or `HTTP`."""
    kind: str
    """How it was made."""
    manner: str
    """How it is sent."""
    parts: tuple[bytes, ...]

    def values(self) -> dict[str, Any]:
        parts = [base64.b64encode(part).decode() for part in self.parts]
        about = {"role": self.role, "to": self.to, "kind": self.kind, "manner": self.manner}
        return {**about, "parts": parts}

    @staticmethod
    def of(values: dict[str, Any]) -> "Case":
        parts = tuple(base64.b64decode(part) for part in values["parts"])
        return Case(values["role"], values["to"], values["kind"], values["manner"], parts)


def save(path: Path, cases: list[Case], **about: Any) -> None:
    """Write a file of cases, one a line, so that a change shows what it changes."""
    lines = ",\n".join(json.dumps(case.values()) for case in cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(about)[1:-1]
    path.write_text("{" + head + (", " if head else "") + f'"cases": [\n{lines}\n]}}\n')


def load(path: Path) -> list[Case]:
    return [Case.of(values) for values in json.loads(path.read_text())["cases"]]


def recorded() -> dict[str, list[tuple[bytes, ...]]]:
    """Calls of real traffic by method: the messages of each."""
    calls: dict[str, list[tuple[bytes, ...]]] = {}
    for case in load(CORPUS / "recorded.json"):
        calls.setdefault(case.to, []).append(case.parts)
    return calls


def file_name(signature: str) -> str:
    """A name for the file of a finding."""
    return f"{hashlib.sha256(signature.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True, slots=True)
class Method:
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
    return [method for method in METHODS.values() if method.role == role]
