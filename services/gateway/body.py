"""Bodies of requests: one JSON object each, and models of its parameters, which OpenAPI shows."""

from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from slipstream.core.request.options import Mode
from slipstream.core.request.prompt import Prompt
from slipstream.core.text.logprobs import MAX_LOGPROBS
from slipstream.core.types import Shape, StopPolicy, Verification
from slipstream.gateway.errors import HttpError
from slipstream.gateway.messages import (
    ChosenFunction,
    FunctionTool,
    GivenMessage,
    StrictModel,
    messages_of,
)

MAX_CHOICES = 16
"""Answers of one request."""
NO_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Parameters that change no answer, whatever their value."""

HARMLESS: Mapping[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "best_of": (1,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([],),
    "reasoning": ({},),
    "conversation": (),
    "max_tool_calls": (),
}
"""Parameters of OpenAI's that can't be honoured, and the values that have no effect."""


def _strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: Any) -> Any:
    """Return a text or token ids, also out of a list of one of them."""
    if isinstance(value, list) and value and not all(type(item) is int for item in value):
        if len(value) > 1:
            raise PydanticCustomError("refused", "has several prompts, but must be one")
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    raise PydanticCustomError("refused", "must be a text or a list of token ids")


_Strings = Annotated[
    list[str],
    BeforeValidator(_strings),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
_Prompt = Annotated[
    Any,
    BeforeValidator(_one_prompt),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}
    ),
]


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class NamedSchema(StrictModel):
    """A JSON schema as OpenAI wraps it."""

    name: str = ""
    description: str | None = None
    value: Any = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(StrictModel):
    """Format of the text as vLLM has it: one of the three."""

    json_schema: Any = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None


class Speculation(StrictModel):
    """The fields of the SDK's `SpeculationOptions`."""

    mode: Annotated[Mode, Field(strict=False)] = Mode.AUTO
    max_draft_tokens: int | None = None
    max_nodes: int | None = None
    shape: Annotated[Shape | None, Field(strict=False)] = None
    stop: Annotated[StopPolicy | None, Field(strict=False)] = None
    threshold: float | None = None
    widths: list[int] | None = None
    verification: Annotated[Verification | None, Field(strict=False)] = None
    num_roots: int | None = None
    drafter: str | None = None
    lookup: bool | None = None
    overlap: bool | None = None


class SharedRequest(StrictModel):
    """Parameters of both kinds of requests."""

    model: str = ""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = Field({})
    seed: int | None = None
    stop: _Strings = Field([])
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    speculation: Speculation | None = None
    with_rounds: bool = False

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with counts of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(SharedRequest):
    """The body of POST /v1/chat/completions."""

    messages: list[GivenMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: list[FunctionTool] = Field([])
    tool_choice: Literal["auto", "none", "required"] | ChosenFunction = "auto"
    parallel_tool_calls: bool = True

    @property
    def prompt(self) -> Prompt:
        """Return the messages as models have them."""
        return messages_of(self.messages)


class CompletionRequest(SharedRequest):
    """The body of POST /v1/completions."""

    prompt: _Prompt
    echo: bool = False
    allow_special_tokens: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None


class TokenizeRequest(StrictModel):
    """The body of POST /tokenize: a raw prompt, or messages with their tools."""

    model: str = ""
    prompt: str | None = None
    messages: list[GivenMessage] = Field([])
    tools: list[FunctionTool] = Field([])

    @property
    def messages_prompt(self) -> Prompt:
        """Return the messages as models have them. Raises `HttpError` where there are none."""
        if not self.messages:
            raise HttpError("prompt or messages is needed", code="missing_parameter")
        return messages_of(self.messages)


class DetokenizeRequest(StrictModel):
    """The body of POST /detokenize."""

    model: str = ""
    tokens: list[int]


R = TypeVar("R", bound=StrictModel)


def validated(kind: type[R], values: Mapping[str, Any]) -> R:
    """Return a request with these parameters. Raises `HttpError` with the first fault.

    Its message quotes no value: it goes into logs, and values are what people write.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = _place(fault["loc"])
    if fault["type"] == "missing":
        raise HttpError(f"{place} is needed", code="missing_parameter", param=place)
    if fault["type"] == "extra_forbidden":
        raise HttpError(
            f"{place} is no parameter of this server", code="unknown_parameter", param=place
        )
    message = fault["msg"]
    starts = message.startswith("Input")
    message = message.replace("Input", place, 1) if starts else f"{place} {message}"
    raise HttpError(message, param=place)


def _place(path: Sequence[str | int]) -> str:
    """Return a place in a body as Python writes it: messages[0].content."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}" for step in path)
    return "".join(steps).removeprefix(".")


def parameters(kind: type[StrictModel], body: bytes) -> dict[str, Any]:
    """Return the parameters of a body of this kind that have an effect.

    Raises `HttpError`, naming the one that can't be honoured; null is the same as leaving one out.
    """
    known = kind.model_fields.keys()
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).partition(" at line")[0]
        raise HttpError(f"the body is not JSON ({reason})", code="invalid_json") from None
    if not isinstance(values, dict):
        raise HttpError("the body must be a JSON object", code="invalid_json")
    return {
        name: value
        for name, value in values.items()
        if not _is_without_effect(name, value, known) and value is not None
    }


def _is_without_effect(name: str, value: object, known: Set[str]) -> bool:
    if name in NO_EFFECT:
        return True
    if name in known:
        return False
    if name not in HARMLESS:
        raise HttpError(
            f"{name[:80]} is no parameter of this server", code="unknown_parameter", param=name[:80]
        )
    harmless = HARMLESS[name]
    # 1 == True == 1.0 in Python, but not in JSON.
    if value is None or any(type(value) is type(it) and value == it for it in harmless):
        return True
    only = " or ".join(repr(it) for it in harmless)
    more = f"; it may only be {only}".replace("False", "false").replace("True", "true")
    raise HttpError(
        f"{name} can't be honoured here{more if only else ''}",
        code="unsupported_parameter",
        param=name,
    )
