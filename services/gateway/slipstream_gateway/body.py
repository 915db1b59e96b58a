"""Bodies of requests: one JSON object each, and models of its parameters, which OpenAPI shows."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.policy.options import Mode
from slipstream.core.request.prompt import MAX_MESSAGES, Prompt
from slipstream.core.types import Shape, StopPolicy, Verification
from slipstream_gateway.errors import NO_PARAMETER, HttpError, both_given, parameters_of, refused
from slipstream_gateway.messages import (
    ChatMessage,
    FunctionSchema,
    FunctionTool,
    StrictModel,
    TemplateRequest,
    ToolChoice,
)

MAX_CHOICES = 16
"""Answers to one prompt, and of one stream."""
MAX_ANSWERS = 128
MAX_VALUES = 262_144
"""Values in lists of a body, such as token ids: reading them is work of the event loop."""
MAX_OBJECTS = 65_536
"""Objects and lists of a body; also members of objects."""


def _whole(value: Any) -> Any:
    """Return 16 for 16.0: JSON has one kind of numbers."""
    return int(value) if type(value) is float and value.is_integer() else value


def _strings(value: Any) -> Any:
    strings = [value] if isinstance(value, str) else value
    return [text for text in strings if text != ""] if isinstance(strings, list) else strings


def _prompts(value: Any) -> Any:
    """Return a list of prompts, each a text or token ids, also of one alone."""
    prompts = [value] if not isinstance(value, list) or _are_ids(value) else value
    if not value or isinstance(value, int | float | dict):
        raise PydanticCustomError(
            "refused", "must be a text, token ids or a list of these, and not empty"
        )
    for number, prompt in enumerate(prompts):
        if not prompt or not (isinstance(prompt, str) or _are_ids(prompt)):
            raise refused(f"prompt[{number}]", "must be a text or token ids, and not empty")
    return [prompt if isinstance(prompt, str) else [*map(_whole, prompt)] for prompt in prompts]


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(_whole(it)) is int for it in value)


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number, also written as 16.0."""
_Flag = Annotated[bool, BeforeValidator(lambda it: False if type(it) is int and it == 0 else it)]
_Count = Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)]
_Strings = Annotated[
    list[str],
    BeforeValidator(_strings),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
_Prompts = Annotated[
    Any, BeforeValidator(_prompts), WithJsonSchema({"type": ["string", "array"], "minItems": 1})
]
_Bias = Annotated[dict[str, float], BeforeValidator(lambda value: {} if value == [] else value)]


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class NamedSchema(StrictModel):
    """A JSON schema as OpenAI wraps it."""

    name: str | None = None
    description: str | None = None
    value: Any = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    value: Any = Field(default=None, alias="schema")


class StructuredOutputs(StrictModel):
    """Format of the text as vLLM has it: one of the three."""

    json_schema: Any = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None


class Speculation(StrictModel):
    """The fields of the SDK's `SpeculationOptions`."""

    mode: Annotated[Mode, Field(strict=False)] = Mode.AUTO
    max_draft_tokens: Whole | None = None
    max_nodes: Whole | None = None
    shape: Annotated[Shape | None, Field(strict=False)] = None
    stop: Annotated[StopPolicy | None, Field(strict=False)] = None
    threshold: float | None = None
    widths: Annotated[tuple[Whole, ...] | None, Field(strict=False)] = None
    verification: Annotated[Verification | None, Field(strict=False)] = None
    num_roots: Whole | None = None
    drafter: str | None = None
    lookup: bool | None = None


class SamplingRequest(StrictModel):
    """Parameters of all kinds of requests for text."""

    model: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: _Bias = Field({})
    seed: Whole | None = None
    stop: _Strings = Field([])
    stream: bool = False
    stream_options: StreamOptions = Field(StreamOptions())
    top_k: Whole | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: Whole = 0
    ignore_eos: bool = False
    stop_token_ids: list[Whole] = Field([])
    speculation: Speculation | None = None


class SharedRequest(SamplingRequest):
    """Parameters of chats and completions."""

    n: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: Whole | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs = StructuredOutputs()
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] = Field([])
    json_schema: Any = None
    regex: str | None = None
    with_rounds: bool = False


class ChatRequest(SharedRequest, TemplateRequest):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES)]
    logprobs: _Flag = False
    top_logprobs: _Count | None = None
    tools: list[FunctionTool] = Field([])
    tool_choice: ToolChoice = "auto"
    functions: list[FunctionSchema] = Field([])
    function_call: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    add_special_tokens: Literal[False] = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def prompts(self) -> list[Prompt]:
        """Return the messages, which are one prompt."""
        return [[message.model_dump() for message in self.messages]]


class CompletionRequest(SharedRequest):
    """The body of POST /v1/completions."""

    prompt: _Prompts
    echo: bool = False
    allow_special_tokens: bool = True
    logprobs: Annotated[_Count | None, BeforeValidator(lambda it: None if it is False else it)] = (
        None
    )
    best_of: Whole | None = None
    add_special_tokens: Literal[True] = True

    @property
    def prompts(self) -> list[Prompt]:
        return list(self.prompt)


class TokenizeRequest(TemplateRequest):
    """The body of POST /tokenize: a raw prompt, or messages with their tools."""

    model: str = ""
    prompt: str | None = None
    messages: list[ChatMessage] = Field([])
    tools: list[FunctionTool] = Field([])
    add_special_tokens: bool | None = None

    @property
    def content(self) -> Prompt:
        """Return the prompt. Raises `HttpError` where there is none."""
        prompt = self.prompt
        if self.add_special_tokens not in (None, prompt is not None):
            why = "may only be true for prompt, and false for messages"
            raise refused("add_special_tokens", why, "unsupported_parameter")
        if prompt is None and not self.messages:
            raise refused("prompt", "or messages is needed", "missing_parameter")
        if prompt is not None and self.messages:
            raise both_given("prompt", "messages")
        return [message.model_dump() for message in self.messages] if prompt is None else prompt


class DetokenizeRequest(StrictModel):
    """The body of POST /detokenize."""

    model: str = ""
    tokens: list[Whole]


TextRequest = ChatRequest | CompletionRequest
R = TypeVar("R", bound=StrictModel)


def validated(kind: type[R], values: Mapping[str, Any]) -> R:
    """Return a request with these parameters. Raises `HttpError` with the first fault.

    Its message quotes no value: it goes into logs, and values are what people write.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    fault = min(faults, key=lambda it: it["type"] != "literal_error")  # its kind comes first
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}" for step in fault["loc"])
    place = "".join(steps).removeprefix(".")  # as Python writes it: messages[0].content
    if fault["type"] == "missing":
        raise refused(place, "is needed", "missing_parameter")
    if fault["type"] == "extra_forbidden":
        raise refused(place, NO_PARAMETER, "unknown_parameter")
    message = fault["msg"].partition(" or instance of ")[0]
    starts = message.startswith("Input")
    message = message.replace("Input", place, 1) if starts else f"{place} {message}"
    raise HttpError(message, param=place)


def read_as(kind: type[R], body: bytes) -> R:
    """Return the request that a body is: its parameters that have an effect.

    Raises `HttpError`, naming the one that can't be honoured; null is the same as leaving one out.
    """
    _check_structure(body)
    try:
        values = from_json(body.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).partition(" at line")[0]
        if "hex escape" in reason:
            reason = "a text has half of a surrogate pair, which is no character"
        if "recursion" in reason:
            raise HttpError("the body is nested too deeply", code="invalid_json") from None
        raise HttpError(f"the body is not JSON ({reason})", code="invalid_json") from None
    if not isinstance(values, dict):
        raise HttpError("the body must be a JSON object", code="invalid_json")
    return validated(kind, parameters_of(values, kind.model_fields.keys()))


def _check_structure(body: bytes) -> None:
    """Raise `HttpError` for more values than a body may have, before it is read."""
    if not _is_large(body):
        return
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # no quote but around texts
    if bare.count(b'"') <= 4 * MAX_OBJECTS and not _is_large(b"".join(bare.split(b'"')[::2])):
        return
    raise HttpError(
        f"the body has more than {MAX_VALUES} values, or {MAX_OBJECTS} objects and lists or members"
        " of objects, or texts, which are the limits",
        code="body_too_large",
        status=413,
    )


def _is_large(body: bytes) -> bool:
    """Return whether there is more punctuation than that of a body may be."""
    num_objects = max(body.count(b"{") + body.count(b"["), body.count(b":"))
    return num_objects > MAX_OBJECTS or body.count(b",") > MAX_VALUES
