"""Messages and tools of chats in bodies of requests."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
_CHOICES = ("auto", "none", "required")
_CHOICE_SCHEMA = WithJsonSchema({"anyOf": [{"enum": list(_CHOICES)}, {"type": "object"}]})


class StrictModel(BaseModel):
    """A part of a body: no other fields, and values of the very types. Null is as absent."""

    model_config = _STRICT

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if item is not None}


class Reasoning(StrictModel):
    """Options of reasoning."""

    effort: str | None = None


class TemplateRequest(StrictModel):
    """Parameters that the chat template reads."""

    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Return the further variables of the template, of which `chat_template_kwargs` win."""
        effort = self.reasoning_effort or (self.reasoning and self.reasoning.effort)
        own = {"reasoning_effort": effort, "enable_thinking": self.enable_thinking}
        return {name: it for name, it in own.items() if it is not None} | self.chat_template_kwargs


class ChatMessage(StrictModel):
    """One message of a chat. Its further fields are data, which the prompt's reader takes."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None


class FunctionSchema(StrictModel):
    """A function that the model may call; arguments of a `strict` one follow its schema."""

    model_config = ConfigDict(extra="ignore")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(StrictModel):
    """A tool: of functions only."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"] = "function"
    function: FunctionSchema


class ResponsesTool(FunctionSchema):
    """A function, in the flat form of the Responses API."""

    type: Literal["function"] = "function"


def _flat(value: Any) -> str | dict[str, Any]:
    """Return a choice by its word, also of {"type": "auto"}, which some clients write, or an object
    with the name of the function that must be called."""
    word = value["type"] if isinstance(value, dict) and value.keys() == {"type"} else value
    if isinstance(word, str) and word in _CHOICES:
        return word
    if isinstance(value, dict) and value.get("type", "function") == "function":
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name:
            return {"type": "function", "name": name}
    raise PydanticCustomError(
        "refused", "must be auto, none, required, or an object that names a function"
    )


def _nested(value: Any) -> str | dict[str, Any]:
    flat = _flat(value)
    return (
        flat if isinstance(flat, str) else {"type": "function", "function": {"name": flat["name"]}}
    )


ToolChoice = Annotated[Any, BeforeValidator(_nested), _CHOICE_SCHEMA]
"""auto, none, required, or the function that must be called, as chats have it."""
FlatToolChoice = Annotated[Any, BeforeValidator(_flat), _CHOICE_SCHEMA]
"""The choice as the Responses API has it."""
