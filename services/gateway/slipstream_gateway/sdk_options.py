"""Conversion of OpenAI's parameters to options of the SDK."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.client import RequestOptions, SamplingParams, SpeculationOptions
from slipstream.core.errors import InvalidRequest
from slipstream.core.grammar import MAX_GRAMMAR_BYTES
from slipstream.core.request.prompt import Prompt
from slipstream.core.request.request import MAX_NAME_LENGTH, MODEL_DEFAULTS
from slipstream.core.request.tools import Tool, tools_of
from slipstream_gateway.body import (
    MAX_ANSWERS,
    MAX_CHOICES,
    ChatRequest,
    CompletionRequest,
    ResponseFormat,
    SharedRequest,
    TextRequest,
)
from slipstream_gateway.chat import ToolUse
from slipstream_gateway.errors import REGEXES, SCHEMAS, HttpError, both_given, refused
from slipstream_gateway.messages import FunctionTool

COMPLETION_MAX_TOKENS = 16
"""OpenAI's own default, of completions only."""
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
_SAMPLING = {
    *("temperature", "top_k", "top_p", "min_p", "min_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
}
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def chat_options(
    body: ChatRequest, request_id: str, default_max_tokens: int
) -> tuple[RequestOptions, ToolUse | None]:
    """Return the options of a chat, and how it uses its tools; None where it has none.

    -1 is no limit on tokens. Raises `HttpError`, or `InvalidRequest`.
    """
    if body.top_logprobs and not body.logprobs:
        raise refused("top_logprobs", "goes with logprobs true only")
    tools, choice = _tools(body)
    is_forced = choice not in ("auto", "none")
    options = _options(body, request_id, default_max_tokens, is_forced=is_forced)
    options["chat_template_kwargs"] = body.variables
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    marked = [(message.model_extra or {}).get("prefix") is True for message in body.messages[-1:]]
    goes_on = body.continue_final_message or any(marked)
    if body.add_generation_prompt is goes_on:
        why = "is true for an answer, and false with continue_final_message"
        raise refused("add_generation_prompt", why)
    options["continue_final"] = goes_on
    options["tools"], options["tool_choice"] = tools, choice
    if not tools or choice == "none":
        return options, None
    is_single = bool(body.functions) or not body.parallel_tool_calls
    return options, ToolUse(tuple(tools), choice != "auto", is_single, bool(body.functions))


def _tools(body: ChatRequest) -> tuple[list[Tool], Any]:
    """Return the tools that may be called, and the choice among them as the SDK has it."""
    if body.tools and body.functions:
        raise both_given("tools", "functions")
    for place, given in (("tool_choice", body.tools), ("function_call", body.functions)):
        if getattr(body, place) not in ("auto", "none") and not given:
            raise refused(place, "asks for a call, but there are no tools")
    older = [FunctionTool(function=function) for function in body.functions]
    tools = given_tools(older, "functions") if older else given_tools(body.tools)
    choice = body.function_call if older else body.tool_choice
    if isinstance(choice, str):
        return tools, choice
    if choice["type"] == "function":
        return tools, {"type": "function", "function": {"name": choice["name"]}}
    names = {tool["name"] for tool in choice["tools"]}
    if names - {tool.name for tool in tools}:
        raise refused("tool_choice", "allows a function that is no tool")
    return [tool for tool in tools if tool.name in names], choice["mode"]


def completion_options(body: CompletionRequest, request_id: str) -> RequestOptions:
    """Return the options of a completion. Raises `HttpError`, or `InvalidRequest`."""
    options = _options(body, request_id, COMPLETION_MAX_TOKENS)
    if body.best_of not in (None, 1, body.n):
        why = f"is {body.best_of}, but may only be 1 or n, as answers are not ranked"
        raise refused("best_of", why, "unsupported_parameter")
    if body.max_tokens == 0:
        if not body.echo or body.stream:
            raise refused("max_tokens", "0 goes with echo and without stream")
        options["max_tokens"] = 1  # the least that the engines decide; the answer leaves it out
    options["raw"] = True
    options["allow_special_tokens"] = body.allow_special_tokens
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
        options["prompt_logprobs"] = body.echo
    return options


def given_tools(tools: Sequence[FunctionTool], name: str = "tools") -> list[Tool]:
    """Return the tools of a body. Raises `HttpError` with the place of one that can't be."""
    found = list[Tool]()
    for number, tool in enumerate(tools):
        try:
            found += tools_of([tool.model_dump(exclude_none=True)])
        except InvalidRequest as error:
            place = f"{name}[{number}]"
            raise HttpError(f"{place}: {error}", param=place) from None
    return found


def each_answer(body: TextRequest, options: RequestOptions) -> list[tuple[Prompt, RequestOptions]]:
    """Return the prompt and options of each answer, n to each prompt in turn.

    Each has an id of its own. A given seed is the first one of every prompt; else all seeds differ.
    Raises `HttpError` for too many answers.
    """
    prompts = [prompt for prompt in body.prompts for _ in range(body.n)]
    kind, limit = ("a stream", MAX_CHOICES) if body.stream else ("a request", MAX_ANSWERS)
    if len(prompts) > limit:
        why = f"and n make {len(prompts)} answers, but {kind} has at most {limit}"
        raise refused("prompt", why)
    sampling, name = options["sampling"], options["request_id"][: MAX_NAME_LENGTH - 4]
    answers = [(prompts[0], options)]
    for index, prompt in enumerate(prompts[1:], 1):
        offset = index if body.seed is None else index % body.n
        seeded = replace(sampling, seed=(sampling.seed + offset) % 2**64)
        own: RequestOptions = {"sampling": seeded, "request_id": f"{name}-{index}"}
        answers.append((prompt, {**options, **own}))
    return answers


def _options(
    body: TextRequest, request_id: str, default_max_tokens: int, *, is_forced: bool = False
) -> RequestOptions:
    if body.with_rounds and not (body.stream and body.n == len(body.prompts) == 1):
        raise refused("with_rounds", "goes with stream true and one answer")
    given = body.model_fields_set | ({"temperature"} if body.top_p == 0 else set())  # is greedy
    options: RequestOptions = {
        "sampling": _sampling(body, request_id),
        "model_defaults": [name for name in MODEL_DEFAULTS if name not in given],
        "stop": tuple(body.stop),
        "stop_token_ids": tuple(body.stop_token_ids),
        "ignore_eos": body.ignore_eos,
        "request_id": request_id,
        "model": body.model,
        "max_tokens": {None: default_max_tokens, -1: None}.get(body.max_tokens, body.max_tokens),
        "with_rounds": body.with_rounds,
    }
    if body.speculation is not None:
        asked = body.speculation.model_dump(exclude_none=True)
        options["speculation"] = SpeculationOptions(**asked)
    return {**options, **_grammar(body, is_forced)}


def _sampling(body: SharedRequest, request_id: str) -> SamplingParams:
    """Return sampling parameters. A request without a seed has a random one as its id, and the same
    if it is sent again."""
    own = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
    if not all(map(_TOKEN_ID.fullmatch, body.logit_bias)):
        raise refused("logit_bias", "must have token ids for keys")
    return SamplingParams(
        **body.model_dump(include=_SAMPLING),
        logit_bias=tuple((int(key), bias) for key, bias in body.logit_bias.items()),
        seed=own if body.seed is None else body.seed,
    )


def _grammar(body: TextRequest, is_forced: bool) -> RequestOptions:
    """Return what the text must follow. A forced call is all of it: no format applies then."""
    form, own = body.response_format, body.structured_outputs
    found: dict[str, RequestOptions] = {} if form is None or is_forced else _formatted(form)
    if own.json_schema is not None:
        found["structured_outputs.json"] = {"json_schema": own.json_schema}
    choices = {"structured_outputs.choice": own.choice, "guided_choice": body.guided_choice or None}
    found |= {name: {"regex": _one_of(it, name)} for name, it in choices.items() if it is not None}
    if own.regex is not None:
        found["structured_outputs.regex"] = {"regex": own.regex}
    found |= {name: {"regex": it} for name in REGEXES if (it := getattr(body, name))}
    found |= {name: {"json_schema": it} for name in SCHEMAS if (it := getattr(body, name))}
    if len(found) > 1:
        raise both_given(*list(found)[:2])
    return next(iter(found.values()), RequestOptions())


def _formatted(form: ResponseFormat) -> dict[str, RequestOptions]:
    wrapped = [] if form.json_schema is None else [form.json_schema.value]
    schemas = wrapped + ([] if form.value is None else [form.value])
    if len(schemas) > (form.type != "text") or (form.type == "json_schema" and not schemas):
        raise refused("response_format", "has one schema where its type is json_schema")
    schema = schemas[0] if schemas else _ANY_OBJECT
    return {} if form.type == "text" else {"response_format": {"json_schema": schema}}


def _one_of(choices: Sequence[str], place: str) -> str:
    """Return an expression that matches each of these, as they are."""
    if not choices or "" in choices:
        raise refused(place, "must have texts to choose from, and none that is empty")
    if (size := sum(map(len, choices))) > MAX_GRAMMAR_BYTES:
        raise refused(place, f"has {size} characters, but at most {MAX_GRAMMAR_BYTES} fit")
    return "|".join(f"({_SPECIAL.sub(lambda match: chr(92) + match[0], it)})" for it in choices)
