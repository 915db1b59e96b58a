"""Bodies of POST /v1/responses, as chats: input items are messages, tools are functions."""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from slipstream.core.errors import InvalidRequest
from slipstream.core.logprobs import MAX_LOGPROBS
from slipstream.core.request.prompt import arguments_text, check_num_parts, content_text
from slipstream_gateway.body import ChatRequest, NamedSchema, SamplingRequest, Whole, validated
from slipstream_gateway.errors import HttpError, http_error, refused
from slipstream_gateway.messages import ResponsesTool, StrictModel, TemplateRequest, ToolChoice

_OBJECT: dict[str, Any] = {"type": "object"}
_ID = re.compile(
    "resp_(?P<session>[0-9a-f]{32})_(?P<setting>[0-9a-f]{8})_(?P<request>[ -~]{1,128})"
)
"""A response's id: its session, a digest of its tools and instructions, and its request."""


class TextFormat(NamedSchema):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    value: Any = Field(None, alias="schema")


class TextOptions(StrictModel):
    """Options of the text."""

    format: TextFormat = TextFormat(type="text", schema=None)


class ResponsesRequest(SamplingRequest, TemplateRequest):
    """The body of POST /v1/responses."""

    input: Annotated[
        Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _OBJECT}]})
    ]
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    top_logprobs: Annotated[Whole | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: list[ResponsesTool] = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    include: list[str] = Field([])
    metadata: dict[str, Any] = Field({})
    previous_response_id: str | None = None
    store: bool = True

    def earlier(self) -> re.Match[str] | None:
        """Return the session, setting and request of the response that this one continues. Raises
        `HttpError`."""
        if not self.previous_response_id:
            return None
        earlier = _ID.fullmatch(self.previous_response_id)
        if earlier is None:
            raise refused("previous_response_id", "is no id of a response of this server")
        if not self.store:
            raise refused("store", "is false, but what continues a response is stored")
        if earlier["setting"] != self.setting:
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
        form, instructions = self._format(), []
        if self.instructions and not self.previous_response_id:
            instructions = [{"role": "system", "content": self.instructions}]
        same = {*SamplingRequest.model_fields, *TemplateRequest.model_fields}
        same |= {"tool_choice", "parallel_tool_calls"}
        values: dict[str, Any] = {
            **self.model_dump(include=same, exclude_unset=True),
            "messages": [*instructions, *_messages(self.input)],
            "max_tokens": self.max_output_tokens,
            "logprobs": bool(self.top_logprobs) or "message.output_text.logprobs" in self.include,
            "top_logprobs": self.top_logprobs or None,
            "tools": [tool.model_dump() for tool in self.tools],
            "response_format": form,
        }
        return validated(ChatRequest, values)

    def _format(self) -> dict[str, Any]:
        form = self.text.format
        if form.type == "json_schema" and form.value is None:
            raise refused("text.format.schema", "is needed", "missing_parameter")
        return {"type": form.type, "schema": None if form.type == "text" else form.value}


def _messages(given: Any) -> list[dict[str, Any]]:
    """Return an input as messages. Raises `HttpError` with the place of what can't be one."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise refused("input", "must be a text or a list of items")
    check_num_parts(len(given))
    messages: list[dict[str, Any]] = []
    thoughts = ""
    for number, item in enumerate(given):
        place = f"input[{number}]"
        try:
            found = _message(item, place)
        except InvalidRequest as error:
            raise http_error(error) from None
        is_answer = found.get("role") == "assistant"
        if is_answer and thoughts:
            found, thoughts = {**found, "reasoning_content": thoughts}, ""
        if "role" not in found:
            thoughts = "\n".join(filter(None, (thoughts, found["reasoning_content"])))
        else:
            _add(messages, found)
    return messages


def _add(messages: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Add a message: a call to those of the assistant's message before it, where there is one."""
    if "tool_calls" in found and messages and messages[-1]["role"] == "assistant":
        calls = messages[-1].get("tool_calls", [])
        calls += found["tool_calls"]
        messages[-1] = {**found, **messages[-1], "tool_calls": calls}
    else:
        messages.append(found)


def _message(item: Any, place: str) -> dict[str, Any]:
    """Return an item as a message, or as reasoning without a role."""
    if not isinstance(item, Mapping):
        raise refused(place, "must be an object")
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        if item.get("role") not in ("system", "developer", "user", "assistant"):
            raise refused(f"{place}.role", "must be system, developer, user or assistant")
        return {**item, "content": content_text(item.get("content"), f"{place}.content")}
    if kind == "reasoning":
        return {"reasoning_content": _thoughts(item)}
    if kind == "function_call_output":
        call_id = item.get("call_id")
        call_id = call_id if isinstance(call_id, str) else ""
        output = content_text(item.get("output"), f"{place}.output")
        return {"role": "tool", "tool_call_id": call_id, "content": output}
    if kind != "function_call":
        known = "message, reasoning, function_call or function_call_output"
        raise refused(f"{place}.type", f"must be {known}; other items can't be read")
    if not isinstance(item.get("name"), str):
        raise refused(f"{place}.name", "must be the function's name")
    function = {"name": item["name"], "arguments": arguments_text(item.get("arguments"))}
    calls = [{"id": item.get("call_id") or item.get("id"), "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _thoughts(item: Mapping[str, Any]) -> str:
    """Return the text of an item of reasoning, or else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        parts = parts if isinstance(parts, list) else []
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        if text := "\n".join(text for text in texts if isinstance(text, str)):
            return text
    return ""
