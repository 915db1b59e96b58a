"""docs/reference/sdk.md: the public names of `slipstream.client`, as the code has them."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from itertools import pairwise
from types import ModuleType
from typing import Any, get_args, get_type_hints, is_typeddict

import slipstream.client
from reference.tables import cell, code, table

INTRODUCTION = """\
# SDK

The public names of `slipstream.client`, from the code. [The SDK's page](../sdk.md) shows how they
are used.
"""
GROUPS = {
    "Clients": ("Client", "AsyncClient", "ClientTls"),
    "Conversations and streams": (
        "ClientSession", "AsyncClientSession", "ChunkStream", "AsyncChunkStream",
    ),
    "What a request says": (
        "Prompt", "RequestOptions", "SamplingParams", "SpeculationOptions", "Mode", "Shape",
        "StopPolicy", "Verification", "Tool",
    ),
}  # fmt: skip
REST = "What comes back"
MADE = ("Client", "AsyncClient")
"""Made by callers, and no dataclasses."""
INNER = {"of", "watched", "credentials", "files", "stamp"}
"""Methods between our own parts."""
FIELDS = "__dataclass_fields__"


def page() -> str:
    grouped = {name for names in GROUPS.values() for name in names}
    rest = [
        name
        for name in slipstream.client.__all__
        if name not in grouped and not isinstance(getattr(slipstream.client, name), ModuleType)
    ]
    parts = [INTRODUCTION]
    for title, names in {**GROUPS, REST: rest}.items():
        found = {name: getattr(slipstream.client, name) for name in names}
        parts += [f"## {title}", "", *(section(name, kind) for name, kind in found.items())]
    parts += ["## Parts of these", "", *(section(at.__name__, at) for at in inner_kinds())]
    return "\n".join([*parts, "`errors` has [every error there is](errors.md).", ""])


def inner_kinds() -> list[type]:
    """Dataclasses in fields of the public ones, and in theirs."""
    public = [getattr(slipstream.client, name) for name in slipstream.client.__all__]
    queue = [at for at in public if isinstance(at, type) and is_dataclass(at)]
    found: list[type] = []
    while queue:
        for hint in get_type_hints(queue.pop(0)).values():
            new = [at for at in kinds_in(hint) if is_dataclass(at) and at not in found + public]
            found += new
            queue += new
    return found


def kinds_in(hint: Any) -> list[type]:
    """The classes that an annotation is made of, each once."""
    parts = [at for inner in get_args(hint) for at in kinds_in(inner)]
    return list(dict.fromkeys(parts)) or ([hint] if isinstance(hint, type) else [])


def section(name: str, found: Any) -> str:
    if inspect.isfunction(found):
        text = " ".join(docs(found).split())
        return "\n".join([f"### {name}", "", f"`{name}{signature(found)}`", "", text, ""])
    if not isinstance(found, type):  # a union
        kinds = str(found).replace("slipstream.core.", "").replace("collections.abc.", "")
        return "\n".join([f"### {name}", "", f"`{kinds}`", ""])
    parts = [f"### {name}", ""]
    if name in MADE:
        inside = "".join(f"    {part},\n" for part in parameters(found))
        parts += ["```py", f"{name}(\n{inside})", "```", ""]
    parts += [docs(found), ""]
    parts += [*members(found)]
    return "\n".join(parts)


def members(found: type) -> Iterator[str]:
    said = attribute_docs(found)
    if issubclass(found, Enum):
        rows = [(code(at.name), code(repr(at.value)), said.get(at.name, "")) for at in found]
        yield told(("Name", "Value", "Meaning"), rows)
    elif is_typeddict(found):
        kinds = found.__annotations__.items()
        rows = [(code(name), code(kind_text(kind)), said.get(name, "")) for name, kind in kinds]
        yield told(("Option", "Type", "Meaning"), rows)
    elif is_dataclass(found):
        yield told(
            ("Field", "Type", "Default", "Meaning"),
            [
                (code(at.name), code(kind_text(at.type)), default_text(at), said.get(at.name, ""))
                for at in fields(found)
            ],
        )
    if not issubclass(found, Enum) and not is_typeddict(found):
        yield "\n".join([*methods(found), ""])


def told(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table, without its last column where that says nothing."""
    if any(row[-1] for row in rows):
        return table(heads, rows)
    return table(heads[:-1], [row[:-1] for row in rows])


def methods(found: type) -> Iterator[str]:
    """Public methods and properties, the inherited ones included."""
    for name, member in inspect.getmembers_static(found):
        if name.startswith("_") or name in INNER or name in getattr(found, FIELDS, ()):
            continue
        inner, kind = member, ""
        if isinstance(member, classmethod | staticmethod):
            inner, kind = member.__func__, f"{type(member).__name__} "
        if inspect.iscoroutinefunction(inner):
            kind = "async "
        head = signature(inner) if inspect.isfunction(inner) else ""
        if head or isinstance(member, property):
            text = " ".join(docs(inner).split())
            yield f"* `{kind}{found.__name__}.{name}{head}`{': ' if text else ''}{text}"


def attribute_docs(found: type) -> dict[str, str]:
    """The string below each attribute of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    said = {}
    for before, after in pairwise(body):
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
            continue
        target = before.targets[0] if isinstance(before, ast.Assign) else before
        name = getattr(getattr(target, "target", target), "id", None)
        if name:
            said[name] = cell(str(after.value.value))
    return said


def signature(found: Any) -> str:
    gives = inspect.signature(found).return_annotation
    behind = "" if gives is inspect.Signature.empty else f" -> {kind_text(gives)}"
    return f"({', '.join(parameters(found))}){behind}"


def parameters(found: Any) -> list[str]:
    """Parameters as the code has them, without `self` and without the paths of modules."""
    whole = inspect.signature(found)
    kept = [at for name, at in whole.parameters.items() if name not in ("self", "cls")]
    star = [at.kind is at.KEYWORD_ONLY for at in kept]
    shown = [parameter(at) for at in kept]
    if True in star:
        shown.insert(star.index(True), "*")
    return shown


def parameter(at: inspect.Parameter) -> str:
    name = f"**{at.name}" if at.kind is at.VAR_KEYWORD else at.name
    kind = "" if at.annotation is at.empty else f": {kind_text(at.annotation)}"
    return f"{name}{kind}{'' if at.default is at.empty else f' = {value_text(at.default)}'}"


def kind_text(kind: Any) -> str:
    """A type as the code has it, without where its names live."""
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    text = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", text).replace("'", "")
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)
    return re.sub(r"Unpack\[(\w+)\]|\*<class (\w+)>", lambda at: at[1] or at[2], text)


def value_text(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def default_text(at: Field[Any]) -> str:
    if at.default is not MISSING:
        return code(value_text(at.default))
    if at.default_factory is not MISSING:
        return code(f"{at.default_factory.__name__}()")
    return "needed"


def docs(found: Any) -> str:
    """The docstring; of a dataclass that has none, nothing."""
    text = inspect.cleandoc(found.__doc__ or "")
    return "" if text.startswith(f"{getattr(found, '__name__', None)}(") else text
