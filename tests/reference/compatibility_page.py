"""docs/compatibility.md: every field of bodies, out of the models and the table that read them."""

import json
from collections.abc import Iterator
from typing import Any, get_args

from reference.tables import cell, code, table
from slipstream_gateway.body import ChatRequest, CompletionRequest
from slipstream_gateway.errors import IGNORED, NAMES, NEUTRAL
from slipstream_gateway.messages import StrictModel
from slipstream_gateway.responses_body import ResponsesRequest

BODIES = {"chats": ChatRequest, "completions": CompletionRequest, "responses": ResponsesRequest}
INTRODUCTION = """\
# Compatibility

What becomes of each field that clients of OpenAI, vLLM, llama.cpp and SGLang send. This page is
written from the models and the table that read the bodies, and a test sends every field. `null` is
as absent everywhere, and whole numbers may be written as `16` or `16.0`. A field on no list is
refused with status 400 and its name, unless it is empty (`""`, `[]` or `{}`). [HTTP
API](http.md#parameters) says what honoured fields mean, and what is taken of [messages, tools and
items](http.md#messages-and-items).
"""
NAMES_TEXT = (
    "Each row is one field, and a body takes the name that is its own in place of any other."
)
IGNORED_TEXT = """\
These change no answer, and any value is taken. On a body that honours a field, the first list
counts.
"""
REFUSED_TEXT = """\
These change the answer and can't be honoured. They are taken at the values that ask for what
happens anyway, and refused by name at all others. On a body that honours a field, the first list
counts.
"""


def page() -> str:
    honoured = {body: set(names(kind)) for body, kind in BODIES.items()}
    fields = [
        (code(name), *("yes" if name in found else "" for found in honoured.values()))
        for name in sorted(set().union(*honoured.values()))
    ]
    ignored = [(code(name), cell(why)) for name, why in IGNORED.items()]
    neutral = [
        (code(name), " or ".join(code(json.dumps(it)) for it in values) or "left out")
        for name, values in NEUTRAL.items()
    ]
    sections = {
        "Honoured": ("", table(("Field", *BODIES), fields)),
        "Other names": (
            NAMES_TEXT,
            table(("Names",), [(" ".join(map(code, it)),) for it in NAMES]),
        ),
        "Ignored": (IGNORED_TEXT, table(("Field", "Why it is harmless"), ignored)),
        "Refused but for neutral values": (REFUSED_TEXT, table(("Field", "Taken"), neutral)),
    }
    parts = (f"## {title}\n\n{text}\n\n{rows}" for title, (text, rows) in sections.items())
    return "\n".join([INTRODUCTION, *parts]).replace("\n\n\n", "\n\n")


def names(kind: type[StrictModel], place: str = "") -> Iterator[str]:
    """The fields of a body, those of its parts behind a dot."""
    for name, field in kind.model_fields.items():
        path = place + (field.alias or name)
        inner = part_of(field.annotation)
        if inner is None:
            yield path
        else:
            yield from names(inner, f"{path}.")


def part_of(annotation: Any) -> type[StrictModel] | None:
    kinds = [annotation, *get_args(annotation)]
    found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrictModel)]
    return found[0] if found and not str(annotation).startswith("list") else None
