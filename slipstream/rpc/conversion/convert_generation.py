"""Requests and answers of the public API on the wire, both ways. What comes in is checked at birth.

`x_to_pb` takes a core value, `x_from_pb` raises `InvalidRequest` for what is no such value, and
`NotBuilt` for what no version can do yet. Figures that follow from others are sent for callers in
other languages, and not read back.
"""

import math
from dataclasses import asdict
from typing import Any

from slipstream.core.errors import InvalidRequest, NotBuilt, UnsupportedCombination, check
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.policy.options import SpeculationOptions, check_num_depths
from slipstream.core.request.prompt import (
    PLAIN_FORM,
    Message,
    Prompt,
    PromptForm,
    are_ids,
    checked_prompt,
)
from slipstream.core.request.request import DEFAULT_MAX_TOKENS, Ask, Generation, SessionRef
from slipstream.core.request.results import Chunk, Continuity, RequestStats, Result, Timings
from slipstream.core.request.stats import SpeculationStats
from slipstream.core.request.tools import NO_PARAMETERS, Tool, check_num_tools
from slipstream.core.text import check_unicode
from slipstream.core.types import FinishReason
from slipstream.rpc.conversion.convert_common import FINISH, message_of, value_from_pb
from slipstream.rpc.v1 import generation_pb2 as pb

_MAX_UINT32 = 2**32 - 1
_GRAMMARS = {GrammarKind.JSON_SCHEMA: "json_schema", GrammarKind.REGEX: "regex"}
"""Fields of a request."""
_OWN = ("role", "content", "tool_call_id")
"""Texts of a message that have a field of their own."""


def generation_to_pb(generation: Generation) -> pb.Generation:
    """Convert a request of the SDK. Raises `InvalidRequest` for what has no place on the wire."""
    ask, ref = generation.ask, generation.session
    session = ref and message_of(pb.SessionRef, ref, after_request_id=ref.after)
    _check_numbers(ask)
    grammar = {} if ask.grammar is None else {_GRAMMARS[ask.grammar.kind]: ask.grammar.text}
    return message_of(
        pb.Generation,
        ask,
        model=generation.model,
        prompt=prompt_to_pb(generation.prompt, ask.form),
        session=session,
        num_received_tokens=generation.num_received,
        stopping=message_of(pb.StoppingCriteria, ask, max_new_tokens=ask.max_tokens or 0),
        logprobs=ask.num_logprobs,
        **grammar,
    )


def generation_from_pb(message: pb.Generation) -> Generation:
    """Convert a request from the wire. Raises `NotBuilt` for fields that nothing honours yet."""
    _refuse_not_built(message)
    prompt, form = prompt_from_pb(message.prompt)
    session: SessionRef | None = None
    if message.HasField("session"):
        ref = message.session
        session = SessionRef(ref.session_id, ref.create, ref.after_request_id)
    ask = ask_from_pb(message, form)
    return Generation(prompt, ask, message.model, session, message.num_received_tokens)


def ask_from_pb(message: pb.Generation, form: PromptForm) -> Ask:
    """Convert parameters. What is unset takes the default. 0 is a value like any
    other, but for `max_new_tokens`, where it is no limit."""
    stopping = message.stopping
    is_bounded = stopping.HasField("max_new_tokens")
    return value_from_pb(
        Ask,
        message,
        max_tokens=(stopping.max_new_tokens or None) if is_bounded else DEFAULT_MAX_TOKENS,
        stop=tuple(stopping.stop),
        stop_token_ids=tuple(stopping.stop_token_ids),
        ignore_eos=stopping.ignore_eos,
        speculation=speculation_from_pb(message.speculation),
        num_logprobs=message.logprobs if message.HasField("logprobs") else None,
        grammar=_grammar_from_pb(message),
        form=form,
    )


def prompt_to_pb(prompt: Prompt, form: PromptForm = PLAIN_FORM) -> pb.Prompt:
    """Text, messages or ids. Raises `InvalidRequest` for what is none of them."""
    prompt = checked_prompt(prompt, form)
    for tool in form.tools:
        check_unicode(tool.description + tool.parameters, f"tool {tool.name}")
    message = message_of(pb.Prompt, form)
    if isinstance(prompt, str):
        message.text = prompt
    elif are_ids(prompt):
        message.token_ids.ids.extend(prompt)  # type: ignore[arg-type]
    else:
        message.chat.messages.extend(map(_message_to_pb, prompt))  # type: ignore[arg-type]
    return message


def _message_to_pb(message: Message) -> pb.ChatMessage:
    calls = [
        pb.ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls", ())
    ]
    own = {name: message[name] for name in _OWN if name in message}
    fields = {name: message[name] for name in message.keys() - {*_OWN, "tool_calls"}}
    return pb.ChatMessage(**own, tool_calls=calls, fields=fields)


def _message_from_pb(message: pb.ChatMessage) -> Message:
    value: dict[str, Any] = {**message.fields, "role": message.role, "content": message.content}
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return value


def prompt_from_pb(message: pb.Prompt) -> tuple[Prompt, PromptForm]:
    match message.WhichOneof("content"):
        case "text":
            prompt: Prompt = message.text
        case "token_ids":
            prompt = tuple(message.token_ids.ids)
        case "chat":
            prompt = tuple(map(_message_from_pb, message.chat.messages))
        case _:
            raise InvalidRequest("the request has no prompt")
    check_num_tools(len(message.tools))
    tools = tuple(
        value_from_pb(Tool, tool, parameters=tool.parameters or NO_PARAMETERS)
        for tool in message.tools
    )
    form = value_from_pb(PromptForm, message, tools=tools)
    return checked_prompt(prompt, form), form


def speculation_from_pb(message: pb.SpeculationOptions) -> SpeculationOptions:
    """Convert speculation options; what is unset stays None, the draft's calibrated default."""
    threshold = message.threshold
    check(math.isfinite(threshold), "threshold", threshold, "a finite number")
    if message.widths:
        check_num_depths(len(message.widths))
    return value_from_pb(SpeculationOptions, message, widths=tuple(message.widths) or None)


def _check_numbers(ask: Ask) -> None:
    """Raise `InvalidRequest` for a number that no field holds."""
    bias = [("a logit_bias token id", token) for token, _ in ask.sampling.logit_bias]
    for name, value in (("top_k", ask.sampling.top_k or 0), *bias):
        is_right = type(value) is int and 0 <= value <= _MAX_UINT32
        check(is_right, name, value, f"an integer up to {_MAX_UINT32}")


def _grammar_from_pb(message: pb.Generation) -> Grammar | None:
    given = {kind: getattr(message, name) for kind, name in _GRAMMARS.items()}
    found = [Grammar(kind, text) for kind, text in given.items() if text]
    if len(found) > 1:
        raise UnsupportedCombination("json_schema and regex are given, but a text follows one")
    return found[0] if found else None


def _refuse_not_built(message: pb.Generation) -> None:
    check(not message.HasField("n") or message.n > 0, "n", message.n, "1")
    asked = {"adapter_id": bool(message.adapter_id), "n above 1": message.n > 1}
    for name, is_asked in asked.items():
        if is_asked:
            raise NotBuilt(f"{name} is asked for, but is not built yet")


def chunk_to_pb(chunk: Chunk) -> pb.GenerateStreamResponse:
    """A part of an answer, with what is known at its beginning or end."""
    finish = None
    if chunk.finish_reason is not None and chunk.stats is not None:
        finish = _finish_to_pb(chunk.finish_reason, chunk.stats)
    return message_of(pb.GenerateStreamResponse, chunk, finish=finish)


def chunk_from_pb(message: pb.GenerateStreamResponse) -> Chunk:
    reason, stats = None, None
    if message.HasField("finish"):
        reason, stats = _finish_from_pb(message.finish)
    return value_from_pb(Chunk, message, finish_reason=reason, stats=stats)


def result_to_pb(result: Result) -> pb.GenerateResponse:
    finish = _finish_to_pb(result.finish_reason, result.stats)
    return message_of(pb.GenerateResponse, result, finish=finish)


def result_from_pb(message: pb.GenerateResponse) -> Result:
    reason, stats = _finish_from_pb(message.finish)
    return value_from_pb(Result, message, finish_reason=reason, stats=stats)


def _finish_to_pb(reason: FinishReason, stats: RequestStats) -> pb.FinishInfo:
    usage = message_of(pb.Usage, stats)
    return message_of(pb.FinishInfo, stats, reason=FINISH.to_pb(reason), usage=usage)


def _finish_from_pb(message: pb.FinishInfo) -> tuple[FinishReason, RequestStats]:
    reason = FINISH.from_pb(message.reason)
    if reason is None:
        raise InvalidRequest("an answer has ended without a reason")
    timings = value_from_pb(Timings, message.timings)
    for name, value in asdict(timings).items():
        check(math.isfinite(value) and value >= 0, name, value, "a time of 0 seconds or more")
    stats = value_from_pb(
        RequestStats,
        message.usage,
        timings=timings,
        speculation=value_from_pb(SpeculationStats, message.speculation),
        continuity=value_from_pb(Continuity, message.continuity),
    )
    return reason, stats
