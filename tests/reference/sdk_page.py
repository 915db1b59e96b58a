"""docs/reference/sdk.md: the public names of `slipstream.client`, as stubs of the code."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import slipstream.client
from slipstream.core import errors

INTRODUCTION = """\
# SDK

The public names of `slipstream.client`, from the code. [The SDK's page](../sdk.md) shows how they
are used.
"""
MADE = ("Client", "AsyncClient")
"""Classes that callers make, and that are no dataclasses."""
INNER = {"of", "watched", "credentials", "files", "stamp"}
"""Methods between our own parts."""


def page() -> str:
    public = {name: getattr(slipstream.client, name) for name in slipstream.client.__all__}
    named = {name: found for name, found in public.items() if not inspect.ismodule(found)}
    inner = {kind.__name__: kind for kind in inner_kinds()}
    kinds = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    parts = [INTRODUCTION]
    for title, group in {"Names": named, "Parts of these": inner, "Errors": kinds}.items():
        parts += [f"## {title}\n", *(section(name, found) for name, found in group.items())]
    return "\n".join(parts)


def inner_kinds() -> list[type]:
    """Dataclasses in fields of the public ones, and in theirs."""
    public = [getattr(slipstream.client, name) for name in slipstream.client.__all__]
    queue = [kind for kind in public if isinstance(kind, type) and is_dataclass(kind)]
    found: list[type] = []
    while queue:
        for hint in get_type_hints(queue.pop(0)).values():
            inner = [kind for kind in kinds_in(hint) if is_dataclass(kind)]
            new = [kind for kind in inner if kind not in found + public]
            found += new
            queue += new
    return found


def kinds_in(hint: Any) -> list[type]:
    """The classes that an annotation is made of, each once."""
    parts = [kind for inner in get_args(hint) for kind in kinds_in(inner)]
    return list(dict.fromkeys(parts)) or ([hint] if isinstance(hint, type) else [])


def section(name: str, found: Any) -> str:
    if not inspect.isclass(found) and not inspect.isfunction(found):  # a union
        text = str(found).replace("slipstream.core.", "").replace("collections.abc.", "")
    else:
        node = parsed(found)
        node.decorator_list = []
        if isinstance(node, ast.ClassDef):
            node.bases = [base for base in node.bases if not ast.unparse(base).startswith("_")]
            node.body = [*members(name, found)] or [ast.Pass()]
        else:
            node.body = node.body[:1]
        text = ast.unparse(node)
    return f"### {name}\n\n```py\n{text}\n```\n"


def parsed(found: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]


def members(name: str, found: type) -> Iterator[ast.stmt]:
    """The docstring and public members, the inherited ones included, each with its docstring."""
    known = {*INNER, *(() if name in MADE else ("__init__",))}
    parents = () if issubclass(found, Exception) else found.__mro__
    for kind in dict.fromkeys((found, *parents)):
        if not kind.__module__.startswith("slipstream."):
            continue
        is_shown = kind is found
        for node in parsed(kind).body:
            label = named(node)
            if label is not None:
                is_shown = label not in known and (label == "__init__" or label[0] != "_")
                known.add(label)
            if is_shown:
                yield shortened(node)
            is_shown = is_shown and label is not None


def named(node: Any) -> str | None:
    """The name that a statement of a class gives to a member."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
    return getattr(target, "id", None) or getattr(target, "name", None)


def shortened(node: Any) -> ast.stmt:
    """A function without what it does."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        has_text = ast.get_docstring(node) is not None
        node.body = node.body[:1] if has_text else [ast.Expr(ast.Constant(...))]
    return node
