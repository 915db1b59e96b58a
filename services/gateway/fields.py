"""What a request's body may say, as models that OpenAPI is written from. Form only.

Models inherit, as pydantic's do. What the values mean to a router is `asked`'s part.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.options import Mode
from slipstream.core.types import Shape, StopPolicy, Verification
from slipstream.gateway.errors import Refused

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
_UNSAID: tuple[object, ...] = (None, [], "")
"""What clients send back of an answer of ours, beside its text."""


def _strings(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: Any) -> Any:
    """A text, token ids, or a list of one of them."""
    if isinstance(value, list) and value and not all(type(item) is int for item in value):
        if len(value) > 1:
            raise PydanticCustomError("refused", "has several prompts, but must be one")
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    raise PydanticCustomError("refused", "must be a text or a list of token ids")


def _text_of(value: Any) -> Any:
    """A message's text: as it is, or its parts put together."""
    if not isinstance(value, list):
        return value
    return "".join(_part_text(part, number) for number, part in enumerate(value))


def _part_text(part: Any, number: int) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise PydanticCustomError(
            "refused",
            "has a part {number} that is no text, but text is all that can be read",
            {"number": number},
        )
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise PydanticCustomError(
            "refused", "has a part {number} that must be type and text", {"number": number}
        )
    return part["text"]


def _said(value: Any) -> Any:
    """A message without what an answer carries beside its text, where that is empty."""
    if not isinstance(value, dict):
        return value
    kept = ("role", "content")
    return {name: it for name, it in value.items() if name in kept or it not in _UNSAID}


_Text = Annotated[
    str,
    BeforeValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]
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


class _Model(BaseModel):
    model_config = _STRICT


class Message(_Model):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text


class StreamOptions(_Model):
    """What a stream says beside the text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class NamedSchema(_Model):
    """A JSON schema as OpenAI wraps it."""

    name: str = ""
    description: str | None = None
    value: Any = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(_Model):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(_Model):
    """The same as vLLM has it: one of the three."""

    json_schema: Any = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None


class Speculation(_Model):
    """How to speculate: the fields of the SDK's `SpeculationOptions`."""

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


class Shared(_Model):
    """What both kinds of requests may say."""

    model: str = ""
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    stop: _Strings = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    speculation: Speculation | None = None


class ChatRequest(Shared):
    """The body of POST /v1/chat/completions."""

    messages: list[Annotated[Message, BeforeValidator(_said)]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None


class CompletionRequest(Shared):
    """The body of POST /v1/completions."""

    prompt: _Prompt
    allow_special_tokens: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None


R = TypeVar("R", bound=Shared)


def understood(kind: type[R], values: Mapping[str, Any]) -> R:
    """A request out of its parameters. Raises `Refused` with one sentence, about the first fault.

    The sentence quotes no value: it goes into logs, and values are what people write.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = _place(fault["loc"])
    if fault["type"] == "missing":
        raise Refused(f"{place} is needed", code="missing_parameter", param=place)
    if fault["type"] == "extra_forbidden":
        raise Refused(
            f"{place} is no parameter of this server", code="unknown_parameter", param=place
        )
    said = fault["msg"]
    what = said.replace("Input", place, 1) if said.startswith("Input") else f"{place} {said}"
    raise Refused(what, code="invalid_value", param=place)


def _place(path: Sequence[str | int]) -> str:
    """A place in a body as Python writes it: messages[0].content."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}" for step in path)
    return "".join(steps).removeprefix(".")
