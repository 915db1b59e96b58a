"""One thing that is sent to a service: bytes, and how. Kept as JSON."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HTTP, WIRE = "http", "wire"
CORPUS = Path(__file__).parent / "corpus"
INCARNATION = "incarnation-0000"
"""Stands for the target's own in what is kept; of the same length."""
TARGET = "127.0.0.1:00000"
"""Stands for the target's address."""


@dataclass(frozen=True, slots=True)
class Case:
    """Messages of one call; or parts of an HTTP request, or of an HTTP/2 connection."""

    role: str
    to: str
    """The RPC's name, `HTTP` or `WIRE`."""
    kind: str
    """How it was made."""
    manner: str
    """How it is sent."""
    parts: tuple[bytes, ...]

    def values(self) -> dict[str, Any]:
        """The case as JSON takes it."""
        parts = [base64.b64encode(part).decode() for part in self.parts]
        about = {"role": self.role, "to": self.to, "kind": self.kind, "manner": self.manner}
        return {**about, "parts": parts}

    @staticmethod
    def of(values: dict[str, Any]) -> "Case":
        """The case again."""
        parts = tuple(base64.b64decode(part) for part in values["parts"])
        return Case(values["role"], values["to"], values["kind"], values["manner"], parts)


def save(path: Path, cases: list[Case], **about: Any) -> None:
    """Write a file of cases, one a line, so that a change shows what it changes."""
    lines = ",\n".join(json.dumps(case.values()) for case in cases)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(about)[1:-1]
    path.write_text("{" + head + (", " if head else "") + f'"cases": [\n{lines}\n]}}\n')


def load(path: Path) -> list[Case]:
    """The cases of a file."""
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
