"""Tools in prompts: as chat templates take them, and for templates that know none, as text."""

import json
from collections.abc import Sequence
from typing import Any

from slipstream.core.request.prompt import Message
from slipstream.core.request.tools import Tool, ToolFormat, shallow_json

AUTO_FORMAT, NO_FORMAT = "auto", "none"
TOOL_FORMATS = (AUTO_FORMAT, *ToolFormat, NO_FORMAT)
"""Formats that a target can use; auto goes by the chat template."""

Json = dict[str, Any]
_CALL_ID = "tool_call_id"

# The instructions that models of the Hermes format were trained with.
_INSTRUCTIONS = """\
You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def format_of(chat_template: str, chosen: str = AUTO_FORMAT) -> ToolFormat | None:
    """Return the format in which a model with this template calls tools; None without a template.

    `chosen` is one of `TOOL_FORMATS`. A template without tools has them as text, in the
    Hermes format.
    """
    if not chat_template or chosen == NO_FORMAT:
        return None
    if chosen != AUTO_FORMAT:
        return ToolFormat(chosen)
    if "<tool_call>" in chat_template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in chat_template:
        return ToolFormat.MISTRAL
    if "<|python_tag|>" in chat_template or "<|eom_id|>" in chat_template:
        return ToolFormat.LLAMA3
    return ToolFormat.HERMES


def tool_json(tool: Tool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def for_template(message: Message, place: str) -> Json:
    """Return a message as chat templates take it: arguments of calls are objects, and text only
    where they broke off. Raises `InvalidRequest` for arguments that are nested too deep."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _value(call, path)}}
        for number, call in enumerate(message.get("tool_calls", ()))
        for path in [f"{place}.tool_calls[{number}]"]
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def broken_call(given: Sequence[Json]) -> str | None:
    """Return the place of the first call, in messages for a template, whose arguments are no
    object; None for none."""
    for place, message in enumerate(given):
        for number, call in enumerate(message.get("tool_calls", ())):
            if not isinstance(call["function"]["arguments"], dict):
                return f"messages[{place}].tool_calls[{number}]"
    return None


def as_text(messages: Sequence[Message], tools: Sequence[Json]) -> list[Json]:
    """Return messages for a template without tools: all about tools is in their text."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=lines)
    if plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{instructions}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


def _plain(message: Message) -> Json:
    if message["role"] == "tool":
        answer = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": answer}
    calls = [_call_text(call) for call in message.get("tool_calls", ())]
    text = [message["content"]] if message["content"] else []
    own = {name: value for name, value in message.items() if name not in ("tool_calls", _CALL_ID)}
    return {**own, "content": "\n".join([*text, *calls])}


def _call_text(call: Json) -> str:
    function = call["function"]
    name, arguments = json.dumps(function["name"], ensure_ascii=False), function["arguments"]
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _value(call: Json, place: str) -> Any:
    arguments = call["function"]["arguments"]
    value = shallow_json(arguments, f"the JSON of {place}")
    return value if isinstance(value, dict) else arguments
