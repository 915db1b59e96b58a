"""Errors as OpenAI's clients expect them: one table from ours, and what only HTTP can refuse."""

import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from importlib.resources import files
from typing import Any

from pydantic import BaseModel

from slipstream.core import errors
from slipstream.core.errors import LimitExceeded, SlipstreamError
from slipstream.core.types import SamplingParams

# The most special class comes first.
TABLE: tuple[tuple[type[SlipstreamError], int, str], ...] = (
    (errors.RequestTooLarge, 413, "body_too_large"),
    (errors.PromptTooLong, 400, "context_length_exceeded"),
    (errors.UnsupportedCombination, 400, "unsupported_combination"),
    (errors.InvalidRequest, 400, "invalid_value"),
    (errors.NotBuilt, 400, "unsupported_parameter"),
    (errors.ModelNotFound, 404, "model_not_found"),
    (errors.SessionError, 409, "conflict"),
    (errors.LimitExceeded, 429, "rate_limit_exceeded"),
    (errors.CapacityError, 429, "no_capacity"),
    (errors.Unauthenticated, 401, "invalid_api_key"),
    (errors.PermissionDenied, 403, "permission_denied"),
    (errors.Unavailable, 503, "unavailable"),
    (errors.HandshakeError, 503, "unavailable"),
    (errors.Cancelled, 503, "cancelled"),
    (errors.DeadlineExceeded, 504, "deadline_exceeded"),
    (errors.SlipstreamError, 500, "internal_error"),
)
"""Status of an error over HTTP, and the code that programs read."""

_PARAMETERS = {
    *("max_tokens", "logprobs", "messages", "input", "ignore_eos", "stop_token_ids", "stop"),
    *("tools", "tool_choice", "chat_template_kwargs"),
    *(field.name for field in fields(SamplingParams)),
}
REGEXES, SCHEMAS = ("guided_regex", "regex"), ("guided_json", "json_schema")
"""Names that other servers have for what a text follows."""
NO_PARAMETER = "is no parameter of this server"
_PLACE = re.compile(r"(\w+)[\w.\[\]]*")
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class HttpError(Exception):
    """An error over HTTP: a request that goes no further."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the error as OpenAI has it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, kind)
        about = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": about}


def refused(place: str, why: str, code: str = "invalid_value") -> HttpError:
    """Return the error of what is wrong at a place in a body."""
    return HttpError(f"{place} {why}", code=code, param=place)


def http_error(error: SlipstreamError, body: BaseModel | None = None) -> HttpError:
    """Return an error of ours as it is over HTTP, with its place in the request's body."""
    status, code = next((status, code) for kind, status, code in TABLE if isinstance(error, kind))
    headers = {} if error.request_id is None else {"x-request-id": error.request_id}
    if isinstance(error, LimitExceeded) and error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    message = str(error) or "the service gave no reason"
    places = {} if body is None else _places_in(body)
    message, param = _placed(message, places) if status == 400 else (message, None)
    return HttpError(message, code=code, param=param, status=status, headers=headers)


def _places_in(body: BaseModel) -> dict[str, str]:
    """Return places in a body by what the router's errors call them."""
    given, is_response = body.model_fields_set, "input" in body.model_fields_set
    prompt = next((name for name in ("input", "tokens", "prompt") if name in given), "messages")
    schema = "text.format.schema" if is_response else "response_format.json_schema.schema"
    tools, names = _tool_places(body), (*REGEXES, *SCHEMAS)
    choosing = "function_call" if "functions" in given else "tool_choice"
    own = next((name for name in names if getattr(body, name, None)), "")
    if own:
        schema = own
    elif "structured_outputs" in given:
        schema = "structured_outputs.json"
    elif getattr(getattr(body, "response_format", None), "value", None) is not None:
        schema = "response_format.schema"
    elif (choice := getattr(body, choosing, "auto")) not in ("auto", "none"):
        chosen = choice.get("tools", [choice]) if isinstance(choice, dict) else []
        named = [tool["name"] for tool in chosen] or tools
        forced = [place for name, place in tools.items() if name in named]
        schema = forced[0] if len(forced) == 1 else "tools"
    places = {"the prompt": prompt, "a prompt": prompt, "the json-schema": schema}
    places |= {"the regex": own or "structured_outputs.regex", "the text": prompt}
    places |= {"continue_final": "continue_final_message", "the tool-calls": "tools"}
    if is_response:
        places["max_tokens"] = "max_output_tokens"
    return places | {f"the schema of tool {name}": place for name, place in tools.items()}


def _tool_places(body: BaseModel) -> dict[str, str]:
    """Return the places of the tools' schemas by the tools' names."""
    places = {}
    for name in ("tools", "functions"):
        for number, tool in enumerate(getattr(body, name, ())):
            function = getattr(tool, "function", tool)
            place = "" if function is tool else "function."
            places[function.name] = f"{name}[{number}].{place}parameters"
    return places


def _placed(message: str, places: Mapping[str, str]) -> tuple[str, str | None]:
    """Return a message that begins with the place of the fault in the body, and the place."""
    for name, place in places.items():
        if message.startswith(f"{name} "):
            return place + message.removeprefix(name), place
    found = _PLACE.match(message)
    return message, found[0] if found is not None and found[1] in _PARAMETERS else None


# Fields of bodies that are no parameters here, with the values at which they change no answer. Null
# is as absent, and so is what is empty, where a field is not listed; a field of a body's own model
# is that model's. docs/compatibility.md lists them.
_FIELDS = json.loads((files("slipstream_gateway") / "fields.json").read_bytes())
IGNORED: Mapping[str, str] = {
    name: group["why"] for group in _FIELDS["ignored"] for name in group["fields"]
}
"""Fields without effect, whatever their value, and why."""
NEUTRAL: Mapping[str, Sequence[object]] = {
    name: group["values"] for group in _FIELDS["neutral"] for name in group["fields"]
}
"""Fields that can't be honoured, and the values that ask for what happens anyway."""

NAMES: Sequence[Sequence[str]] = _FIELDS["names"]
"""Names of one field on different servers: a body is read by that of its own model."""

_NESTED = {name.partition(".")[0] for name in (*IGNORED, *NEUTRAL) if "." in name}


def parameters_of(body: Mapping[str, Any], known: Set[str], place: str = "") -> dict[str, Any]:
    """Return the fields of a body that have an effect; `known` are those of its model.

    Raises `HttpError` for a field of the table that can't be honoured, with its full name.
    """
    kept = {}
    for name, given in (body if place else _by_own_names(body, known)).items():
        path, value, is_known = place + name, given, name in known
        if name in _NESTED and isinstance(given, dict) and not place:
            value = parameters_of(given, set(), f"{name}.")
            if not is_known and path not in IGNORED:  # what is left of it is no field at all
                path, value = next(((f"{name}.{it}", value[it]) for it in value), (path, None))
        if value is None or (not is_known and _is_without_effect(path, value)):
            continue
        if not place and not is_known:
            raise refused(path[:80], NO_PARAMETER, "unknown_parameter")
        kept[name] = value
    return kept


def _by_own_names(body: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """Return a body with the names that its model has, without null. Of two limits -1, which is
    none, gives way; raises `HttpError` for other values that differ."""
    own = {it: name for names in NAMES for name in names if name in known for it in names}
    found, given = dict[str, Any](), dict[str, str]()
    for name, value in body.items():
        kept = own.get(name, name)
        if value is None or (kept in found and value in (-1, found[kept])):
            continue
        if kept in found and found[kept] != -1:
            raise both_given(given[kept], name)
        found[kept], given[kept] = value, name
    return found


def both_given(one: str, other: str) -> HttpError:
    """Return the error of two fields of which one counts."""
    message = f"{one} and {other} are both given, but only one of them can be honoured"
    return HttpError(message, code="unsupported_combination", param=other)


def _is_without_effect(name: str, value: object) -> bool:
    """Return whether it is a field of the table. Raises `HttpError` for one with an effect."""
    if name in IGNORED:
        return True
    if name not in NEUTRAL:
        return "." not in name and value in ("", [], {})
    # 1 == True in Python, but not in JSON.
    values = NEUTRAL[name]
    if any((type(value) is bool) == (type(it) is bool) and value == it for it in values):
        return True
    only = " or ".join(map(json.dumps, values)) or "left out"
    why = f"can't be honoured here; it may only be {only}"
    raise refused(name, why, "unsupported_parameter")
