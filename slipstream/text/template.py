"""Rendering of messages by a model's chat template, as transformers does it.

Templates are programs of strangers: they run in a sandbox, without escape to Python, and what
they are and what they write is bounded in size. The time and memory that they take are bounded by
the process that runs them, in a service: `slipstream.text.worker`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from slipstream.core.errors import InvalidRequest, check_fits
from slipstream.core.request.prompt import Message

MAX_TEMPLATE_BYTES = 256 << 10
"""The longest template, special tokens included; those in use have up to 30 KiB."""
MAX_RENDERED_CHARS = 16 << 20
_MAX_REASON_CHARS = 200
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})

_SAMPLE = "7315902"  # which no filter for letters changes
_AROUND = {"user": (0, 0), "system": (0, 1), "assistant": (1, 1), "tool": (1, 1)}
"""Messages of the user before and after one of a role, in samples."""
_TOOLS = re.compile(r"\btools\b")

Json = dict[str, Any]
Messages = Sequence[Message]
Variables = Json | None
Now = Callable[[], datetime]


class ChatTemplate:
    """A template in Jinja, with the special tokens and the clock that it may use.

    An empty source is a model without a template. Safe to share between threads.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Now) -> None:
        """Raises `InvalidRequest` for what is too large, or a special token with another's name.

        A source with mistakes is refused when it is to render, for the model can still go on from
        raw text.
        """
        _check_size(source, special_tokens)
        for name in special_tokens:
            if not name.isidentifier() or name in _RESERVED:
                raise InvalidRequest(f"no special token of a chat template can be named {name!r}")
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._now = now

    @property
    def takes_tools(self) -> bool:
        """Return whether it shows tools: it names the variable that has them."""
        return bool(_TOOLS.search(self._source))

    def render(
        self, messages: Messages, tools: Sequence[Json] = (), own: Json | None = None
    ) -> str:
        """Return the conversation as text, up to where the model is to answer.

        Raises `InvalidRequest` without a template, for one with mistakes, for variables of its
        `own` that it has already, and when it refuses the messages, or fails over them.
        """
        if not messages:
            raise InvalidRequest("there are no messages for the chat template")
        own = own or {}
        if taken := sorted(own.keys() & (_RESERVED | self._special_tokens.keys())):
            raise InvalidRequest(f"chat_template_kwargs has {taken[0]}, which the template has")
        program, in_parts = self._program, self.roles_in_parts
        try:
            shown = [_in_form(message, in_parts) for message in messages]
            return self._text(program, shown, tools, own)
        except (InvalidRequest, MemoryError):
            raise
        except Exception as error:  # a stranger's program fails as it likes
            raise InvalidRequest(
                f"the chat template refuses these messages ({_brief(error)})"
            ) from None

    @cached_property
    def _program(self) -> Template:
        if not self._source:
            raise InvalidRequest("the model has no chat template, so the prompt must be raw")
        try:
            return _environment(self._now).from_string(self._source)
        except TemplateSyntaxError as error:
            raise InvalidRequest(
                f"the chat template is broken in line {error.lineno} ({_brief(error)})"
            ) from None
        except Exception as error:  # deep nesting, literals that are none
            raise InvalidRequest(f"the chat template is broken ({_brief(error)})") from None

    @cached_property
    def roles_in_parts(self) -> frozenset[str]:
        """Roles of the messages whose content is walked over in parts: as a text it is lost."""
        user = {"role": "user", "content": _SAMPLE}
        found: set[str] = set()
        for role in ("user", "system", "assistant", "tool"):
            own = {"role": role, "content": _SAMPLE, "tool_call_id": "0", "name": "sample"}
            before, after = _AROUND[role]
            sample = [*[user] * before, own, *[user] * after]
            if not self._shows(sample, found) and self._shows(sample, found | {role}):
                found.add(role)
        return frozenset(found)

    def _shows(self, messages: Sequence[Message], in_parts: Set[str]) -> bool:
        try:
            text = self._text(self._program, [_in_form(it, in_parts) for it in messages], (), {})
        except Exception:  # a stranger's program fails as it likes
            return False
        return text.count(_SAMPLE) >= len(messages)

    def _text(
        self, program: Template, messages: list[Json], tools: Sequence[Json], own: Json
    ) -> str:
        parts, num_chars = [], 0
        given = {"messages": messages, "tools": list(tools) or None, "add_generation_prompt": True}
        for piece in program.generate({"documents": None, **own, **given, **self._special_tokens}):
            num_chars += len(piece)
            if num_chars > MAX_RENDERED_CHARS:
                raise InvalidRequest(
                    f"the chat template makes more than {MAX_RENDERED_CHARS} characters of these"
                    " messages"
                )
            parts.append(piece)
        return "".join(parts)


def _in_form(message: Message, in_parts: Set[str]) -> Json:
    content = message["content"]
    if message["role"] in in_parts and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def _environment(now: Now) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


class _GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training: rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_body"), [], [], body)
        return block.set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes of a class, which lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` without names of Python's own, which lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is a name that templates may store, hence no parameter is called so.
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_stored(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_stored(name)
        super().__setitem__(name, value)


def _check_stored(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't store {name!r}")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: `<` and quotes stay, where Jinja would escape for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _check_size(source: str, special_tokens: Mapping[str, str]) -> None:
    texts = [source, *special_tokens, *special_tokens.values()]
    size = sum(len(text.encode(errors="surrogatepass")) for text in texts)
    subject = "the chat template and its special tokens have"
    check_fits(subject, size, "bytes", MAX_TEMPLATE_BYTES)


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:_MAX_REASON_CHARS] if lines else type(error).__name__


def default_template(given: str | Mapping[str, str | None] | None) -> str:
    """Return the default of a model's chat templates; one for tools stands in it where they are
    given. Empty for none."""
    if not isinstance(given, Mapping):
        return given or ""
    plain, with_tools = given.get("default") or "", given.get("tool_use")
    if not (plain and with_tools):
        return plain
    return f"{{% if tools %}}{with_tools}{{% else %}}{plain}{{% endif %}}"
