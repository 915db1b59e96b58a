"""Tools that a model may call: functions, and a JSON schema of their arguments. Form only."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any

from slipstream.core.errors import InvalidRequest, check, check_fits
from slipstream.core.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from slipstream.core.request.schemas import placed_schema

MAX_TOOLS = 128
MAX_TOOL_BYTES = 65_536
"""Largest size of one tool: its name, description and schema."""
_MAX_SCHEMA_CHARS = 2 * MAX_GRAMMAR_BYTES
"""Longest text of schemas before they are compacted into one grammar."""
MAX_TOOLS_BYTES = 512 << 10
"""Largest size of all tools of a request to a router, which parses them on its event loop."""
MAX_JSON_DEPTH = 64
"""Deepest nesting of objects and lists in schemas and in arguments of calls."""
NO_PARAMETERS = '{"type":"object","properties":{}}'
_FUNCTION_FIELDS = {"name", "description", "parameters", "strict"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_OUTSIDE, _IN_STRING = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')
"""Characters that matter to JSON's nesting outside of strings, and in them."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class ToolFormat(StrEnum):
    """Text that a model writes to call a tool."""

    HERMES = "hermes"
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, SmolLM."""
    LLAMA3 = "llama3"
    """`{"name": …, "parameters": …}` and nothing else: Llama 3.1 and later."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}`: Mistral."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; `parameters` is JSON of a schema of an object. A call of a
    `strict` one follows the schema also where the model chose to call."""

    name: str
    description: str = ""
    parameters: str = NO_PARAMETERS
    strict: bool = False

    def __post_init__(self) -> None:
        is_right = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        limit = "1 to 128 letters, digits or any of - _ . : /"
        check(is_right, "a tool's name", str(self.name)[:80], limit)
        texts = (self.name, self.description, self.parameters)
        size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
        check_fits(f"tool {self.name} has", size, "bytes", MAX_TOOL_BYTES)
        json_object(self.parameters, f"the schema of tool {self.name}")

    @property
    def schema(self) -> dict[str, Any]:
        """Return the schema of its arguments."""
        return json_object(self.parameters, f"the schema of tool {self.name}")


def tools_of(given: Sequence[Tool | Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Return tools, also where they are as OpenAI writes them. Raises `InvalidRequest`."""
    return tuple(it if isinstance(it, Tool) else _tool(it) for it in given)


def _tool(value: Mapping[str, Any]) -> Tool:
    function: Any = value.get("function") if isinstance(value, Mapping) else None
    is_known = isinstance(function, Mapping) and {"name"} <= set(function) <= _FUNCTION_FIELDS
    if not is_known or set(value) != {"type", "function"} or value["type"] != "function":
        raise InvalidRequest(
            "a tool must have the type function, and a function with name, description, parameters"
            " and strict"
        )
    schema, about = function.get("parameters"), function.get("description") or ""
    text = NO_PARAMETERS if schema is None else json.dumps(schema)
    return Tool(function["name"], about, text, bool(function.get("strict")))


def forced_tools(tools: Sequence[Tool], choice: str | Mapping[str, Any]) -> tuple[Tool, ...]:
    """Return the tools one of which must be called; none where the model may choose.

    `choice` is as OpenAI has it: auto, none, required, or an object that names a function. Raises
    `InvalidRequest` for another one, or where there is no such tool.
    """
    if choice in ("auto", "none"):
        return ()
    name = None if choice == "required" else _chosen_name(choice)
    chosen = tuple(tool for tool in tools if name in (None, tool.name))
    if not chosen:
        why = "is required, but there are no tools"
        named = f"names {(name or '')[:80]!r}, but there is no such tool"
        raise InvalidRequest(f"tool_choice {why if name is None else named}")
    return chosen


def _chosen_name(choice: Any) -> str:
    try:
        name, kind = choice["function"]["name"], choice["type"]
    except (TypeError, KeyError):
        name = kind = None
    if kind != "function" or not isinstance(name, str):
        raise InvalidRequest(
            "tool_choice must be auto, none, required, or an object that names a function"
        )
    return name


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise `InvalidRequest` for too many tools, or two of a name."""
    check_num_tools(len(tools))
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidRequest(f"tools has two named {min(twice)}")


def check_num_tools(num_tools: int) -> None:
    """Raise `InvalidRequest` for more tools than a request may have."""
    check_fits("tools has", num_tools, "functions", MAX_TOOLS)


def json_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises `InvalidRequest` for anything else."""
    value = shallow_json(text, what)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a JSON object")
    return value


def shallow_json(text: str, what: str) -> Any:
    """Return the value of JSON, None for a text that is none. Raises `InvalidRequest` for one that
    is nested deeper than `MAX_JSON_DEPTH`."""
    too_deep = InvalidRequest(f"{what} must be nested at most {MAX_JSON_DEPTH} deep")
    try:
        value = json.loads(text, strict=False)  # models write line breaks in texts as they are
    except RecursionError:
        raise too_deep from None
    except ValueError:
        return None
    level = _containers([value])
    for _ in range(MAX_JSON_DEPTH):
        values = (item.values() if isinstance(item, dict) else item for item in level)
        level = _containers(chain.from_iterable(values))
    if level:
        raise too_deep
    return value


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def decoded_json(text: str) -> Any:
    """Return the value of JSON; None for a text that is none."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def escaped_json(text: str, is_string: bool, is_escaped: bool) -> str:
    """Return a part of JSON, which may begin in a string, with the line breaks and other control
    characters of strings escaped: models write them as they are."""
    if not _CONTROL.search(text):
        return text
    found = []
    for char in text:
        found.append(json.dumps(char)[1:-1] if is_string and char < " " else char)
        is_string ^= char == '"' and not is_escaped
        is_escaped = char == "\\" and is_string and not is_escaped
    return "".join(found)


class JsonNesting:
    """Finds where JSON ends, by its brackets outside of strings, while it comes."""

    def __init__(self, depth: int = 0) -> None:
        self.depth, self.num_marks = depth, 0
        """Brackets and ends of strings so far."""
        self.is_string = self.is_escaped = False

    def end_of(self, text: str, position: int) -> int:
        """Return the position behind the last bracket; 0 until it is there."""
        while (position := self.next_mark(text, position)) and self.depth:
            pass
        return position

    def next_mark(self, text: str, position: int) -> int:
        """Read from `position` on; return the position behind a bracket or a string, 0 for none."""
        if self.is_escaped and position < len(text):
            position, self.is_escaped = position + 1, False
        while found := (_IN_STRING if self.is_string else _OUTSIDE).search(text, position):
            position, char = found.end(), found[0]
            if char == "\\":
                position, self.is_escaped = position + 1, position == len(text)
                continue
            self.is_string = char == '"' and not self.is_string
            if not self.is_string:
                self.depth += (char in "{[") - (char in "}]")
                self.num_marks += 1
                return position
        return 0


def calls_grammar(tools: Sequence[Tool], tool_format: ToolFormat | None) -> Grammar | None:
    """Return the grammar of calls in a text of the model's choice; None without a strict tool."""
    if tool_format is None or not any(tool.strict for tool in tools):
        return None
    free = '{"type":"object"}'
    tools = [tool if tool.strict else replace(tool, parameters=free) for tool in tools]
    arguments = "parameters" if tool_format is ToolFormat.LLAMA3 else "arguments"
    about = {"format": tool_format, "schema": call_schema(tools, arguments)}
    return Grammar(GrammarKind.TOOL_CALLS, json.dumps(about))


def call_schema(tools: Sequence[Tool], arguments: str = "arguments") -> dict[str, Any]:
    """Return the schema of one call of one of these tools: an object with name and arguments.

    References in a tool's schema are to the schema itself, which is a definition here. Raises
    `InvalidRequest` for schemas of which no grammar can come.
    """
    size = sum(len(tool.parameters) for tool in tools)
    subject = "the schemas of tools that are followed have"
    check_fits(subject, size, "characters", _MAX_SCHEMA_CHARS)
    calls, schemas = [], {}
    for number, tool in enumerate(tools):
        place = f"tool{number}"
        what = f"the schema of tool {tool.name}"
        schemas[place] = schema = placed_schema(tool.schema, f"#/$defs/{place}", what)
        if "object" not in str(schema.get("type", "object")):  # which may be a list
            raise InvalidRequest(f"{what} must have the type object")
        given = {"type": "object", "$ref": f"#/$defs/{place}"}
        call = {"name": {"const": tool.name}, arguments: given}
        calls.append(
            {
                "type": "object",
                "properties": call,
                "required": list(call),
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": schemas}
