"""Work on event loops that grows with its input: which coroutines do it, and what bounds the input.

`tests/test_house_rules.py` compares the table with the syntax trees: a coroutine is found where it,
or a plain function that it calls by name, calls one of `HEAVY`. What goes to a thread is no call.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

import budgets
from support.commands import PACKAGE_DIRS

HEAVY = {
    *("json.loads", "json.dumps", "from_json", "model_validate", "model_dump", "model_dump_json"),
    *("hashlib.sha256", "hashlib.sha1", "zlib.compress", "zlib.decompress", "zlib.decompressobj"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "open", "tomllib.loads"),
    *("render", "encode_prompt", "MessageToDict", "marshal.loads", "marshal.dumps"),
}
"""Callables by name, with their module where the name alone says too little."""
LOOPS = (
    *("router", "gateway", "draft", "target", "drafting", "verifying"),
    *("rpc", "client", "state"),
)
"""Packages whose coroutines share a loop with others' requests; services without `slipstream_`."""
PACKAGES = (*LOOPS, "core", "text", "telemetry", "ngrams")
BOUNDS = {
    "a body: 4 MiB (max_body_bytes), 65,536 objects, 262,144 values (gateway/body.py); a long one"
    " is read on a thread": (
        *("gateway/app.py:_read", "gateway/app.py:chat", "gateway/app.py:completion"),
        *("gateway/app.py:responses", "gateway/app.py:tokenize", "gateway/app.py:_tokens"),
    ),
    "an answer: max_tokens of a request, and 128 answers": (
        *("gateway/app.py:_answer", "gateway/app.py:detokenize", "gateway/http_io.py:of"),
        "gateway/response_job.py:events",
    ),
    "a few facts of this server, and of each model": (
        *("gateway/app.py:health", "gateway/app.py:model", "gateway/app.py:models"),
        *("gateway/app.py:version", "state/registry.py:announce"),
    ),
    "a message: 4 MiB, 10,000 fields (rpc/wire.py), 2,048 messages, 128 tools": (
        *("router/servicer.py:_run", "router/servicer.py:Tokenize", "router/limits.py:admitted"),
        *("router/request_runner.py:_run", "router/encoder.py:encode"),
        *("state/session_leases.py:acquire", "state/session_leases.py:turn_request"),
    ),
    "the ending of a request: its reason and statistics": ("state/journal.py:keep",),
    "the caller's own request, in its own process": (
        *("client/client.py:tokenize", "client/remote.py:_next", "client/remote.py:generate"),
        *("client/remote.py:tokenize", "client/embedded.py:tokenize"),
        "client/embedded_session.py:_encode",
    ),
    "the head of an answer of a text worker: 64 KiB; a tokenizer's files are texts as they are": (
        *("router/encoder.py:_exchanged", "router/encoder.py:open_text"),
    ),
    "what is read before it serves": ("draft/__main__.py:_serve", "rpc/server.py:start"),
}
"""Coroutines by what bounds their input."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Name = tuple[str, str]
"""A module, as in imports, and a function of it; of a method without its class."""


def found() -> set[str]:
    """Return the coroutines that do such work, as "router/app.py:start"."""
    functions = dict(_functions())
    counts = Counter(name for _, name in functions)
    only = {name: (module, name) for module, name in functions if counts[name] == 1}
    calls = {name: set(_calls(node, only | known)) for name, (node, known) in functions.items()}
    heavy = {name for name, called in calls.items() if called & HEAVY}
    plain = {name for name, (node, _) in functions.items() if isinstance(node, ast.FunctionDef)}
    while news := {it for it in plain - heavy if not calls[it].isdisjoint(heavy)}:
        heavy |= news
    return {
        f"{module.replace('.', '/')}.py:{name}"
        for (module, name), (node, _) in functions.items()
        if isinstance(node, ast.AsyncFunctionDef) and module.split(".")[0] in LOOPS
        if (module, name) in heavy or not calls[module, name].isdisjoint(heavy & plain)
    }


def _functions() -> Iterator[tuple[Name, tuple[Function, Mapping[str, Name]]]]:
    for path in budgets.python_files(*budgets.PACKAGES):
        folder = next(at for at in PACKAGE_DIRS[::-1] if path.is_relative_to(at))
        module = _short(".".join(path.relative_to(folder).with_suffix("").parts))
        if module.split(".")[0] not in PACKAGES:
            continue
        tree = ast.parse(path.read_text())
        known = {
            alias.asname or alias.name: (_short(node.module or ""), alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        own = [node for node in ast.walk(tree) if isinstance(node, Function)]
        known |= {node.name: (module, node.name) for node in own}
        yield from (((module, node.name), (node, known)) for node in own)


def _short(module: str) -> str:
    return module.removeprefix("slipstream").lstrip("._")


def _calls(node: Function, known: Mapping[str, Name]) -> Iterator[str | Name]:
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        at = call.func
        if isinstance(at, ast.Name):
            yield at.id
            yield known.get(at.id, ("", at.id))
        elif isinstance(at, ast.Attribute):
            owner = at.value.id if isinstance(at.value, ast.Name) else ""
            yield from (at.attr if at.attr != "open" else "", f"{owner}.{at.attr}")
            yield known.get(at.attr, ("", at.attr))
