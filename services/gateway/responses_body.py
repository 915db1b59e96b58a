"""Bodies of POST /v1/responses, as chats: input items are messages, tools are functions."""

import hashlib
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from slipstream.core.text.logprobs import MAX_LOGPROBS
from slipstream.gateway.body import ChatRequest, Speculation
from slipstream.gateway.errors import HttpError
from slipstream.gateway.messages import ChosenFunction, FunctionName, StrictModel, Text

_ID = re.compile(r"resp_([0-9a-f]{32})_([0-9a-f]{8})_([ -~]{1,128})")


class EarlierResponse(NamedTuple):
    """Parts of a response's id: its session, a digest of its tools and instructions, and the
    request that made it."""

    session_id: str
    setting: str
    request_id: str


class InputMessage(StrictModel):
    """A message; those of earlier answers have an id and a status."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(StrictModel):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class InputCallOutput(StrictModel):
    """Result of a called function."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


class ResponsesTool(StrictModel):
    """A function, in the flat form of this API."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenTool(StrictModel):
    """A choice of the function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(StrictModel):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    value: Any = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(StrictModel):
    """Options of the text."""

    format: TextFormat


class ResponsesRequest(StrictModel):
    """The body of POST /v1/responses."""

    model: str = ""
    input: str | list[InputMessage | InputCall | InputCallOutput]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: list[ResponsesTool] = Field([])
    tool_choice: Literal["auto", "none", "required"] | ChosenTool = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    seed: int | None = None
    top_k: int | None = None
    min_p: float = 0.0
    speculation: Speculation | None = None

    def earlier(self) -> EarlierResponse | None:
        """Return the response that this one continues. Raises `HttpError`."""
        name = self.previous_response_id
        if name is None:
            return None
        parts = _ID.fullmatch(name)
        if parts is None:
            raise HttpError(
                "previous_response_id is no id of a response of this server",
                param="previous_response_id",
            )
        if not self.store:
            raise HttpError(
                "store is false, but what continues a response is stored", param="store"
            )
        earlier = EarlierResponse(*parts.groups())
        if earlier.setting != self.setting:
            raise HttpError(
                "instructions and tools must be those of the first response, whose session goes on",
                param="previous_response_id",
            )
        return earlier

    @property
    def setting(self) -> str:
        """Return a digest of what a session's first turn fixes: instructions and tools."""
        tools = [tool.model_dump_json() for tool in self.tools]
        text = "\n".join([self.instructions or "", *tools])
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]

    def chat(self) -> ChatRequest:
        """Return the same as a chat. Raises `HttpError` for items that are no messages.

        One that continues a response has the new messages alone, and no tools in its prompt.
        """
        values: dict[str, Any] = {
            **{name: getattr(self, name) for name in _SAME},
            "messages": [*self._instructions(), *self._messages()],
            "max_tokens": self.max_output_tokens,
            "logprobs": self.top_logprobs is not None,
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"})}
                for tool in self.tools
            ],
            "tool_choice": self._choice(),
            "response_format": self._format(),
        }
        try:
            return ChatRequest.model_validate(values)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise HttpError(f"the input can't be read: {fault['msg']}", param="input") from None

    def _choice(self) -> str | ChosenFunction:
        choice = self.tool_choice
        if isinstance(choice, str):
            return choice
        return ChosenFunction(type="function", function=FunctionName(name=choice.name))

    def _format(self) -> dict[str, Any]:
        form = None if self.text is None else self.text.format
        if form is None or form.type != "json_schema":
            return {"type": "text" if form is None else form.type}
        return {"type": form.type, "json_schema": {"name": form.name, "schema": form.value}}

    def _instructions(self) -> list[dict[str, Any]]:
        if not self.instructions or self.previous_response_id is not None:
            return []
        return [{"role": "system", "content": self.instructions}]

    def _messages(self) -> list[dict[str, Any]]:
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for item in self.input:
            match item:
                case InputMessage():
                    messages.append({"role": item.role, "content": _content(item.content)})
                case InputCallOutput():
                    message = {"role": "tool", "tool_call_id": item.call_id}
                    messages.append({**message, "content": _content(item.output)})
                case InputCall():
                    if not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant", "content": ""})
                    function = {"name": item.name, "arguments": item.arguments}
                    call = {"id": item.call_id, "type": "function", "function": function}
                    messages[-1].setdefault("tool_calls", []).append(call)
        return messages


_SAME = (
    *("model", "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "stream", "seed"),
    *("top_k", "min_p", "speculation"),
)
"""Parameters that a chat has too, under the same names."""


def _content(parts: str | list[dict[str, Any]]) -> Text:
    """Return a text, of parts in the form that chats have."""
    if isinstance(parts, str):
        return parts
    texts = ("input_text", "output_text")
    return [  # type: ignore[return-value]
        {"type": "text", "text": part["text"]}
        if part.get("type") in texts and "text" in part
        else part
        for part in parts
    ]
