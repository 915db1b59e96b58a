"""docs/reference/protos.md: services, messages and enums with the comments of the .proto files."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from reference.tables import cell, code, table

ROOT = Path(__file__).parents[2]
PACKAGE = "slipstream/rpc/v1"
FILES = ("generation", "draft", "target", "common")
"""The public one first."""
INTRODUCTION = """\
# Protos

The wire, package `slipstream.rpc.v1`, from `protos/slipstream/rpc/v1`. Clients need
`generation.proto` and `common.proto`; the others are between services. Fields are added, never
renumbered or reused. [Services](../services.md#how-the-wire-works) says how messages follow each
other.
"""
# Numbers of FileDescriptorProto and DescriptorProto, which paths of comments are made of.
MESSAGES, ENUMS, SERVICES, MEMBERS, NESTED, NESTED_ENUMS, PACKAGE_LINE = 4, 5, 6, 2, 3, 4, 12

Comments = dict[tuple[int, ...], str]


def page() -> str:
    return "\n".join([INTRODUCTION, *(section(file) for file in files())])


def files() -> list[Any]:
    """The parsed files, with where everything stands in them."""
    names = [f"{PACKAGE}/{name}.proto" for name in FILES]
    with TemporaryDirectory() as folder:
        out = Path(folder, "out.binpb")
        code_of = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'protos'}",
                f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                "--include_source_info",
                f"--descriptor_set_out={out}",
                *names,
            ]
        )
        assert code_of == 0, "protoc has said what is wrong"
        found = FileDescriptorSet.FromString(out.read_bytes())
    by_name = {file.name: file for file in found.file}
    return [by_name[name] for name in names]


def section(file: Any) -> str:
    said = comments(file)
    parts = [f"## {file.name.rpartition('/')[2]}", "", said.get((PACKAGE_LINE,), ""), ""]
    for at, service in enumerate(file.service):
        parts += service_lines(service, said, (SERVICES, at))
    for at, message in enumerate(file.message_type):
        parts += message_lines(message, said, (MESSAGES, at), message.name)
    for at, enum in enumerate(file.enum_type):
        parts += enum_lines(enum, said, (ENUMS, at), enum.name)
    return "\n".join(parts)


def comments(file: Any) -> Comments:
    """The comment above each element; the file's own is above its first line."""
    found = {
        tuple(at.path): " ".join(at.leading_comments.split())
        for at in file.source_code_info.location
        if at.leading_comments
    }
    found[PACKAGE_LINE,] = found.pop((PACKAGE_LINE,), "")
    return found


def service_lines(service: Any, said: Comments, path: tuple[int, ...]) -> list[str]:
    rows = [
        (code(method.name), sides(method), cell(said.get((*path, MEMBERS, at), "")))
        for at, method in enumerate(service.method)
    ]
    heads = ("Method", "Takes and gives", "Meaning")
    return [f"### {service.name}", "", said.get(path, ""), "", table(heads, rows)]


def sides(method: Any) -> str:
    takes = "stream of " if method.client_streaming else ""
    gives = "stream of " if method.server_streaming else ""
    return f"{takes}{link(method.input_type)}, {gives}{link(method.output_type)}"


def message_lines(message: Any, said: Comments, path: tuple[int, ...], name: str) -> Iterator[str]:
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    rows = []
    for at, field in enumerate(message.field):
        text = said.get((*path, MEMBERS, at), "")
        rows.append((str(field.number), code(field.name), kind(field, message, maps), cell(text)))
    yield from [f"### {name}", "", said.get(path, ""), ""]
    if rows:
        yield table(("Number", "Field", "Kind", "Meaning"), rows)
    for at, nested in enumerate(message.nested_type):
        if nested.name not in maps:
            yield from message_lines(nested, said, (*path, NESTED, at), f"{name}.{nested.name}")
    for at, enum in enumerate(message.enum_type):
        yield from enum_lines(enum, said, (*path, NESTED_ENUMS, at), f"{name}.{enum.name}")


def kind(field: Any, message: Any, maps: dict[str, Any]) -> str:
    """A field's type, with what is around it."""
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {plain(key)} to {plain(value)}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {plain(field)}"
    if field.proto3_optional:
        return f"{plain(field)}, optional"
    if field.HasField("oneof_index"):
        return f"{plain(field)}, one of {code(message.oneof_decl[field.oneof_index].name)}"
    return plain(field)


def plain(field: Any) -> str:
    if field.type_name:
        return link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def link(full_name: str) -> str:
    """A type of ours by its name, as a link; another one as it is."""
    name = full_name.removeprefix(".slipstream.rpc.v1.")
    if name == full_name:
        return code(full_name.removeprefix("."))
    return f"[{name}](#{name.lower().replace('.', '')})"


def enum_lines(enum: Any, said: Comments, path: tuple[int, ...], name: str) -> list[str]:
    rows = [
        (str(value.number), code(value.name), cell(said.get((*path, MEMBERS, at), "")))
        for at, value in enumerate(enum.value)
    ]
    heads = ("Number", "Value", "Meaning")
    return [f"### {name}", "", said.get(path, ""), "", table(heads, rows)]
