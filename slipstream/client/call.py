"""A client's requests: their options, and what the client adds."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import uuid4

from slipstream.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    SlipstreamError,
    UnsupportedCombination,
    check,
)
from slipstream.core.grammar import Grammar, GrammarKind
from slipstream.core.policy.options import SpeculationOptions
from slipstream.core.request.model_info import ModelInfo
from slipstream.core.request.prompt import Prompt, PromptForm
from slipstream.core.request.request import Ask, Generation, SessionRef
from slipstream.core.request.results import Chunk, Result
from slipstream.core.request.tools import Tool, call_schema, forced_tools, tools_of
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.telemetry.sdk_spans import SdkSpan


class RequestOptions(TypedDict, total=False):
    """Options of a request beside its prompt; what is left out takes the default."""

    sampling: SamplingParams
    """The distribution to sample from; greedy by default."""
    model_defaults: Sequence[str]
    """Parameters of `sampling` that give way to the model's default, where it has one."""
    max_tokens: int | None
    """Limit on new tokens, 256 by default; None for as many as the context has room for."""
    stop: Sequence[str]
    """Strings that end the text, and are not part of it."""
    stop_token_ids: Sequence[int]
    """Tokens that end the text beside the model's own."""
    ignore_eos: bool
    """Go on to `max_tokens` behind the tokens with which the model ends a text."""
    speculation: SpeculationOptions
    """Options of speculation; by default as calibrated, while it pays."""
    raw: bool
    """Take a text prompt as it is, not as a user's message."""
    allow_special_tokens: bool
    """Read the names of special tokens in a raw text as these tokens, not as plain text."""
    request_id: str
    """Names the request in its result and in errors; a random one by default."""
    timeout_s: float
    """Seconds until the request fails with `DeadlineExceeded`; the client's by default."""
    model: str
    """One of the router's models; the client's by default."""
    with_origins: bool
    """Return where each token came from."""
    with_rounds: bool
    """Return with each chunk of a stream the rounds that made it: trees, and what was kept."""
    logprobs: int
    """Return each token's log probability, and those of so many of the likeliest beside it."""
    prompt_logprobs: bool
    """Return those of the prompt's tokens, too, in `result.prompt.logprobs`."""
    json_schema: str | Mapping[str, Any] | bool
    """A JSON schema that the text follows."""
    regex: str
    """A regular expression that the whole text matches."""
    continue_final: bool
    """Continue the last message, the assistant's, instead of answering it."""
    chat_template_kwargs: Mapping[str, Any]
    """Further variables of the chat template, such as enable_thinking."""
    tools: Sequence[Tool | Mapping[str, Any]]
    """Functions that the model may call, also as OpenAI writes them."""
    tool_choice: str | Mapping[str, Any]
    """auto, none, required, or as OpenAI names a function; a forced call is all of the text."""
    after: str
    """The request_id of the turn that a session's request follows; by default the newest one."""
    num_received: int
    """Tokens held from an answer to the same request that broke off; only the rest is streamed."""


class NoTelemetry:
    """Telemetry of a request that records nothing, where the application has no OpenTelemetry."""

    headers: tuple[tuple[str, str], ...] = ()

    def begin(self) -> None: ...
    def record_chunk(self, chunk: Chunk) -> None: ...
    def record_result(self, result: Result) -> None: ...
    def record_error(self, error: BaseException) -> None: ...
    def record_cancelled(self) -> None: ...


NO_TELEMETRY = NoTelemetry()


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A request on its way to a backend. `timeout_s` None is without end."""

    generation: Generation
    timeout_s: float | None
    telemetry: "SdkSpan | NoTelemetry" = NO_TELEMETRY

    @property
    def request_id(self) -> str:
        """Return the name of the request; never empty."""
        return self.generation.ask.request_id


def make_generation(
    prompt: Prompt, options: RequestOptions, model: str, session: SessionRef | None
) -> Generation:
    """Return what a caller requests; `model` is the one by default. Raises `InvalidRequest`."""
    _check_names(options)
    num_received = options.get("num_received", 0)
    if num_received and not options.get("request_id"):
        raise InvalidRequest("num_received goes with the request_id of the request that broke off")
    model = options.get("model", model)
    if after := options.get("after", ""):
        if session is None:
            raise InvalidRequest("after goes with a session, where it names an earlier turn")
        session = replace(session, after=after)
    return Generation(prompt, _ask(options), model, session, num_received)


def check_whole(options: RequestOptions) -> None:
    """Raise `InvalidRequest` where a part is wanted of what comes at once."""
    if options.get("num_received"):
        raise InvalidRequest("num_received goes with a stream; a result is always the whole")
    if options.get("with_rounds"):
        raise InvalidRequest("with_rounds goes with a stream, whose chunks have the rounds")


def check_timeout(timeout_s: float | None) -> None:
    """Raise `InvalidRequest` unless it is a time to come, or none."""
    is_right = timeout_s is None or (math.isfinite(timeout_s) and timeout_s > 0)
    check(is_right, "timeout_s", timeout_s, "above 0")


def late(timeout_s: float) -> DeadlineExceeded:
    """Return the error of a request whose time has run out."""
    return DeadlineExceeded(f"the request took longer than its {timeout_s:g} s")


def only_model(models: Sequence[ModelInfo]) -> ModelInfo:
    """Return the only one. Raises `InvalidRequest`, with their names, where there are several."""
    if len(models) != 1:
        names = ", ".join(info.model for info in models) or "none"
        raise InvalidRequest(f"the models are {names}, so one must be named")
    return models[0]


@contextmanager
def named(request_id: str) -> Iterator[None]:
    """Give errors that pass the id: as `request_id`, and as a note in tracebacks."""
    try:
        yield
    except SlipstreamError as error:
        if error.request_id is None:
            error.request_id = request_id
            error.add_note(f"request_id {request_id}")
        raise


def _ask(options: RequestOptions) -> Ask:
    tools, choice = tools_of(options.get("tools", ())), options.get("tool_choice", "auto")
    grammar = _grammar(options)
    if forced := forced_tools(tools, choice):
        if grammar is not None:
            raise UnsupportedCombination(
                f"tool_choice and a {grammar.kind.value} are given, but a text follows one"
            )
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(call_schema(forced)))
    known = {field.name for field in fields(Ask)}
    given: dict[str, Any] = {name: value for name, value in options.items() if name in known}
    for name in ("stop", "stop_token_ids", "model_defaults"):
        given[name] = tuple(given.get(name, ()))
    raw, special = options.get("raw", False), options.get("allow_special_tokens", False)
    shown = () if choice == "none" else tools
    continue_final, own = options.get("continue_final", False), options.get("chat_template_kwargs")
    given["form"] = PromptForm(raw, special, shown, continue_final, json.dumps(own) if own else "")
    given["request_id"] = given.get("request_id") or uuid4().hex
    return Ask(**given, num_logprobs=options.get("logprobs"), grammar=grammar)


def _grammar(options: RequestOptions) -> Grammar | None:
    schema, regex = options.get("json_schema"), options.get("regex")
    if schema is None:
        return None if regex is None else Grammar(GrammarKind.REGEX, regex)
    if regex is not None:
        raise UnsupportedCombination("json_schema and regex are given, but a text follows one")
    if not isinstance(schema, str | Mapping) and schema is not True:
        raise InvalidRequest("the json-schema must be an object, or true")
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def _check_names(options: RequestOptions) -> None:
    known = RequestOptions.__optional_keys__
    if unknown := sorted(options.keys() - known):
        raise InvalidRequest(
            f"there is no option {unknown[0]}, but there are {', '.join(sorted(known))}"
        )
    if isinstance(options.get("stop"), str):
        raise InvalidRequest(f"stop is {options['stop']!r}, but must be a list of strings")
