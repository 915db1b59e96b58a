"""Messages and tools of chats in bodies of requests."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
"""Words for whether a tool is called; Mistral's and Anthropic's `any` is OpenAI's `required`."""
_ALLOWED = "allowed_tools"
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
    enabled: bool | None = None


class Thinking(StrictModel):
    """Switch of thinking; `adaptive` and `auto` leave it to the template."""

    type: Literal["enabled", "disabled", "adaptive", "auto"] = "auto"


class TemplateRequest(StrictModel):
    """Parameters that the chat template reads."""

    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    reasoning: Reasoning = Reasoning()
    enable_thinking: bool | None = None
    think: bool | None = None
    thinking: Thinking = Thinking()

    @property
    def variables(self) -> dict[str, Any]:
        """Return the further variables of the template, of which `chat_template_kwargs` win.

        Templates name the switch `enable_thinking` or `thinking`; an effort of none turns it off.
        """
        effort, kind = self.reasoning_effort or self.reasoning.effort, self.thinking.type
        given = (self.enable_thinking, self.think, self.reasoning.enabled)
        words = {"enabled": True, "disabled": False}.get(kind), {"none": False}.get(effort or "")
        switch = next((it for it in (*given, *words) if it is not None), None)
        own = {"reasoning_effort": effort, "enable_thinking": switch, "thinking": switch}
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
    """A tool: of functions only; in `function`, or as the Responses API has it."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"] = "function"
    function: FunctionSchema

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        is_flat = isinstance(value, dict) and "name" in value and "function" not in value
        return {"type": value.get("type"), "function": value} if is_flat else value


class ResponsesTool(FunctionSchema):
    """A function, in the flat form of the Responses API."""

    type: Literal["function"] = "function"


def _choice(value: Any) -> str | dict[str, Any]:
    """Return a choice as the Responses API has it: a word, or an object that names the function
    that must be called or, as `allowed_tools`, those that may be."""
    given = value if isinstance(value, dict) else {"type": value}
    kind = given.get("type", "function")
    if given.keys() == {"type"} and isinstance(kind, str) and kind in _CHOICES:
        return _CHOICES[kind]
    inner = given.get(_ALLOWED, given) if kind == _ALLOWED else None
    allowed = inner if isinstance(inner, dict) and isinstance(inner.get("tools"), list) else {}
    names, mode = [_name(tool) for tool in allowed.get("tools", ())], allowed.get("mode", "auto")
    if names and all(names) and mode in ("auto", "required"):
        tools = [{"type": "function", "name": name} for name in names]
        return {"type": _ALLOWED, "mode": mode, "tools": tools}
    if kind in ("function", "tool") and (name := _name(given)):
        return {"type": "function", "name": name}
    why = "must be auto, none, required, or an object that names a function or allowed_tools"
    raise PydanticCustomError("refused", why)


def _name(value: Any) -> str | None:
    """Return the name of a function, also of one that is in `function`."""
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


ToolChoice = Annotated[Any, BeforeValidator(_choice), _CHOICE_SCHEMA]
"""auto, none, required, the function that must be called, or those that may be."""
