"""From bodies to requests of the SDK: what OpenAI's parameters are called here, and mean.

Knows no HTTP.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.client import Prompt, RequestOptions, SamplingParams, SpeculationOptions
from slipstream.gateway.errors import Refused
from slipstream.gateway.fields import (
    ChatRequest,
    CompletionRequest,
    ResponseFormat,
    Shared,
    StructuredOutputs,
)

COMPLETION_MAX_TOKENS = 16
"""OpenAI's own default, of completions only."""

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the router, and how its answer is to be told."""

    prompt: Prompt
    options: RequestOptions
    request_id: str
    stream: bool
    include_usage: bool


def asked_chat(body: ChatRequest, *, request_id: str, default_max_tokens: int) -> Asked:
    """Messages, which go through the model's template. Raises `Refused`, or `InvalidRequest`."""
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise _together("max_tokens", "max_completion_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise Refused(
            "top_logprobs goes with logprobs true only", code="invalid_value", param="top_logprobs"
        )
    options = _options(body, request_id)
    options["max_tokens"] = max((it for it in limits if it is not None), default=default_max_tokens)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    prompt = tuple({"role": _role(it.role), "content": it.content} for it in body.messages)
    return _asked(prompt, options, body)


def asked_completion(body: CompletionRequest, *, request_id: str) -> Asked:
    """A text as it is, or token ids. Raises `Refused`, or `InvalidRequest`."""
    options = _options(body, request_id)
    options["max_tokens"] = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    options["raw"] = True
    options["allow_special_tokens"] = body.allow_special_tokens
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    return _asked(body.prompt, options, body)


def seed_of(request_id: str) -> int:
    """The seed of a request that gives none: as random as its name, and the same when it is sent
    again."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")


def _asked(prompt: Prompt, options: RequestOptions, body: Shared) -> Asked:
    told = body.stream_options
    if told is not None and not body.stream:
        raise Refused(
            "stream_options goes with stream true only",
            code="invalid_value",
            param="stream_options",
        )
    include_usage = told is not None and told.include_usage
    return Asked(prompt, options, options["request_id"], body.stream, include_usage)


def _options(body: Shared, request_id: str) -> RequestOptions:
    options: RequestOptions = {
        "sampling": _sampling(body, request_id),
        "stop": tuple(body.stop),
        "request_id": request_id,
        "model": body.model,
    }
    if body.speculation is not None:
        given = body.speculation.model_dump(exclude_none=True)
        if "widths" in given:
            given["widths"] = tuple(given["widths"])
        options["speculation"] = SpeculationOptions(**given)
    return {**options, **_grammar(body)}


def _sampling(body: Shared, request_id: str) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=tuple((_token_id(key), bias) for key, bias in body.logit_bias.items()),
        seed=seed_of(request_id) if body.seed is None else body.seed,
    )


def _grammar(body: Shared) -> RequestOptions:
    formatted: RequestOptions = {}
    structured: RequestOptions = {}
    if body.response_format is not None:
        formatted = _formatted(body.response_format)
    if body.structured_outputs is not None:
        structured = _structured(body.structured_outputs)
    if formatted and structured:
        raise _together("response_format", "structured_outputs")
    return formatted or structured


def _formatted(form: ResponseFormat) -> RequestOptions:
    if (form.json_schema is not None) != (form.type == "json_schema"):
        raise Refused(
            "response_format has a json_schema exactly where its type is json_schema",
            code="invalid_value",
            param="response_format",
        )
    if form.type == "text":
        return {}
    return {"json_schema": _ANY_OBJECT if form.json_schema is None else form.json_schema.value}


def _structured(form: StructuredOutputs) -> RequestOptions:
    given = [form.json_schema, form.regex, form.choice]
    if sum(it is not None for it in given) != 1:
        raise Refused(
            "structured_outputs must have one of json, regex and choice",
            code="invalid_value",
            param="structured_outputs",
        )
    if form.json_schema is not None:
        return {"json_schema": form.json_schema}
    return {"regex": _one_of(form.choice or ()) if form.regex is None else form.regex}


def _one_of(choices: Sequence[str]) -> str:
    """An expression that matches each of these, as they are."""
    if not choices or "" in choices:
        raise Refused(
            "structured_outputs.choice must have texts to choose from, and none that is empty",
            code="invalid_value",
            param="structured_outputs.choice",
        )
    return "|".join(f"({_SPECIAL.sub(lambda at: chr(92) + at[0], it)})" for it in choices)


def _role(role: str) -> str:
    """What OpenAI calls a developer's message now, models know as the system's."""
    return "system" if role == "developer" else role


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise Refused(
            "logit_bias must have token ids for keys", code="invalid_value", param="logit_bias"
        )
    return int(key)


def _together(one: str, other: str) -> Refused:
    message = f"{one} and {other} are both given, but only one of them can be honoured"
    return Refused(message, code="unsupported_combination", param=other)
