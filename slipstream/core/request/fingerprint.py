"""Digests of requests: equal if and only if the requests are. Pure."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from slipstream.core.request.prompt import Prompt, are_ids
from slipstream.core.request.request import Generation


def fingerprint(asked: Generation) -> str:
    """SHA-256 in hexadecimal of what a request says of the answer that it wants.

    Not among that are its id, what its caller holds, whether its session is to begin, and what
    tokens are to say of themselves. The same for every router of a version.
    """
    session = asked.session and replace(asked.session, create=False)
    kind, prompt = _prompt_bytes(asked.prompt)
    nameless = replace(
        asked,
        prompt=kind,
        ask=replace(
            asked.ask,
            request_id="",
            with_origins=False,
            with_rounds=False,
            prompt_logprobs=False,
            num_logprobs=None,
        ),
        session=session,
        num_received=0,
    )
    digest = hashlib.sha256(json.dumps(asdict(nameless), sort_keys=True).encode())
    digest.update(b"\n")  # which JSON on one line does not have
    digest.update(prompt)
    return digest.hexdigest()


def _prompt_bytes(prompt: Prompt) -> tuple[str, bytes]:
    """The form of a checked prompt, and its bytes, which no other prompt of the form has."""
    if isinstance(prompt, str):
        return "text", prompt.encode()
    if are_ids(prompt):
        return "ids", struct.pack(f"<{len(prompt)}I", *prompt)
    return "messages", b"".join(_parts(prompt))


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the bytes of messages, each with its form and size before it. Texts are no JSON: to
    write that takes ten times as long as to copy them."""
    if isinstance(value, str):
        text = value.encode()
        yield from (b"s%d:" % len(text), text)
    elif isinstance(value, Mapping):
        yield b"m%d:" % len(value)
        for name in sorted(value):
            yield from (*_parts(name), *_parts(value[name]))
    elif isinstance(value, Sequence):
        yield b"l%d:" % len(value)
        for item in value:
            yield from _parts(item)
    else:
        yield b"j%b;" % json.dumps(value).encode()
