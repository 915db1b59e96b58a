"""Bodies of requests: bounded while they arrive, one JSON object, with what each name may say.

What a parameter means is `fields`' part; here it is known, refused, or without effect.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from slipstream.gateway.errors import CallerGone, Refused

JSON = "application/json"

NO_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Parameters that change no answer, whatever they say."""

HARMLESS: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Parameters of OpenAI's that can't be honoured, and the values that ask for nothing."""


async def read_body(
    parts: AsyncIterator[bytes], headers: Mapping[str, str], *, limit: int, timeout_s: float
) -> bytes:
    """Return all of a body.

    Raises `Refused` for one that is no JSON, too large or too slow, and `CallerGone` when the
    caller leaves before its end.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(f"the content-type must be {JSON}", code="unsupported_media_type", status=415)
    said = headers.get("content-length", "")
    if said.isdecimal() and len(said) < 20 and int(said) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout_s):
            return await _gathered(parts, limit)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} s"
        raise Refused(message, code="request_timeout", status=408) from None
    except ClientDisconnect:
        raise CallerGone from None


def parameters(body: bytes, known: Set[str]) -> dict[str, Any]:
    """The parameters of a body that mean something. Raises `Refused`, naming the one that can't be.

    `known` are those that may be honoured; null is the same as leaving one out.
    """
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).partition(" at line")[0]
        raise Refused(f"the body is not JSON ({reason})", code="invalid_json") from None
    if not isinstance(values, dict):
        raise Refused("the body must be a JSON object", code="invalid_json")
    return {
        name: value
        for name, value in values.items()
        if not _is_without_effect(name, value, known) and value is not None
    }


async def _gathered(parts: AsyncIterator[bytes], limit: int) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _is_without_effect(name: str, value: object, known: Set[str]) -> bool:
    if name in NO_EFFECT:
        return True
    if name in known:
        return False
    if name not in HARMLESS:
        raise Refused(
            f"{name[:80]} is no parameter of this server", code="unknown_parameter", param=name[:80]
        )
    harmless = HARMLESS[name]
    # 1 == True == 1.0 in Python, but not in JSON.
    if value is None or any(type(value) is type(it) and value == it for it in harmless):
        return True
    only = " or ".join(repr(it) for it in harmless)
    more = f"; it may only be {only}".replace("False", "false").replace("True", "true")
    raise Refused(
        f"{name} can't be honoured here{more if only else ''}",
        code="unsupported_parameter",
        param=name,
    )


def _too_large(limit: int) -> Refused:
    message = f"the body is larger than {limit} bytes, which is the limit"
    return Refused(message, code="body_too_large", status=413)
