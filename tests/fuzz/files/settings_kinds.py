"""Kinds of files that operators and users write: configurations, keys, certificates, prompts."""

import re
import tempfile
import tomllib
from collections.abc import Callable
from datetime import date
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

from fuzz.files.kinds import Kind
from fuzz.files.mutations import json_lines, some_bytes, toml
from slipstream.bench.questions import read_questions
from slipstream.cli.keys import add_key
from slipstream.cli.trace import page, summary
from slipstream.config import load_config, load_settings
from slipstream.files import read_token
from slipstream.models.format.folder import all_or_nothing
from slipstream.models.format.wheel import GgufWheel, NoProgress, extract
from slipstream.rpc.security import read_authority, read_pair
from slipstream.state.access import Access, Entry
from slipstream.state.options import StoreOptions
from slipstream.telemetry.config import TelemetryConfig
from slipstream.telemetry.traces import find_trace, read_spans
from slipstream.train.data import ReadLimits, read_data
from support.deployment.charts import CONFIGS
from support.network.certificates import certificates


def _configuration(cls: Callable[..., Any], section: str) -> Callable[[Path], object]:
    return lambda path: load_config(cls, section=section, file=path, env={})


SERVICES: dict[str, Callable[..., Any]] = {**CONFIGS, "telemetry": TelemetryConfig}
SERVICES_PAGE = Path(__file__).parents[3] / "docs/services.md"
(CONFIGURATION,) = re.findall(r"^```toml\n(.*?)^```$", SERVICES_PAGE.read_text(), re.M | re.S)
KEYS = b"""[keys.alice]
sha256 = "62efda010f12aac931d40328c28718a719699b465eee5780543c9136772d5af7"
requests_per_minute = 60
expires = 2037-01-31

# the other one
[keys.bob]
sha256 = "03efda010f12aac931d40328c28718a719699b465eee5780543c9136772d5af7"
tokens_per_minute = 100000
max_concurrent = 8
"""
CONVERSATIONS = b"""{"p": [1, 2, 3], "g": [4, 5]}
{"prompt": "hello", "answer": "there"}
{"prompt": "hello"}
{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}"""
QUESTIONS = b"""{"question_id": 1, "category": "writing", "turns": ["Write.", "Again."]}
{"question_id": "two", "category": "qa", "turns": ["Why?"]}"""


def _environment(path: Path) -> None:
    """Read settings and the options of each service from lines NAME=VALUE."""
    lines = path.read_bytes().decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    given = {name: value for name, equals, value in (at.partition("=") for at in lines) if equals}
    load_settings(given)
    for section, cls in SERVICES.items():
        load_config(cls, section=section, env=given)


def _variables() -> list[bytes]:
    """Return a configuration of all services as variables."""
    lines = [
        f"SLIPSTREAM_{section.upper()}_{name.upper()}={str(value).strip('[]')}".replace("'", "")
        for section, table in tomllib.loads(CONFIGURATION).items()
        for name, value in table.items()
    ]
    return ["\n".join(["SLIPSTREAM_CACHE=/nothing", "SLIPSTREAM_OFFLINE=1", *lines]).encode()]


def _keys(path: Path) -> None:
    """Read keys as a router does, and add one as a command does."""
    Access(path)
    add_key(path, Entry("eve", "ab" * 32, expires=date(2037, 1, 1)))


def _pair(path: Path) -> None:
    """Read a file that holds a certificate, an authority and a private key."""
    read_authority(path)
    read_pair(path, path)


def _pem() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        own = certificates(Path(folder)).folder
        return [(own / "router.pem").read_bytes() + (own / "router.key").read_bytes()]


def _pem_lines(random: Random, data: bytes) -> bytes:
    """Break the lines of a PEM file, and the DER below them."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = random.choice((b"", lines[at] * 2, lines[at][1:], random.choice(lines), b"=" * 70))
    return some_bytes(random, data) if random.random() < 0.5 else b"\n".join(lines)


def _traces(path: Path) -> None:
    """Read traces, and show the last request's."""
    if (found := find_trace(read_spans(path.parent), None)) is not None:
        page(found)
        list(summary(found).lines())


def _spans() -> list[bytes]:
    from support.telemetry.sample_traces import write_trace

    with tempfile.TemporaryDirectory() as folder:
        write_trace(Path(folder))
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def _data(path: Path) -> None:
    encode = lambda prompt: list(str(prompt).encode("utf-8", "replace"))[:50]  # noqa: E731
    read_data(path, ReadLimits(256, 64, encode), encode=encode)


def _wheel(path: Path) -> None:
    """Take the file out as `models pull` does."""
    with all_or_nothing(path.parent, "model") as folder:
        extract(_PINNED, path, folder / "out", NoProgress())
    rmtree(path.parent / "model")


def _archives() -> list[bytes]:
    found = []
    for method in (ZIP_STORED, ZIP_DEFLATED, ZIP_LZMA):
        with BytesIO() as into:
            with ZipFile(into, "w", method) as archive:
                archive.writestr(_PINNED.member, _CONTENT)
                archive.writestr("tiny/other", b"x")
            found.append(into.getvalue())
    return found


_CONTENT = b"weights " * 40
_PINNED = GgufWheel("tiny", "1", "tiny/m.gguf", len(_CONTENT), sha256(_CONTENT).hexdigest())
KINDS = (
    *(
        Kind(
            f"{section} configuration",
            "slipstream.toml",
            lambda: [CONFIGURATION.encode()],
            toml,
            _configuration(cls, section),
        )
        for section, cls in SERVICES.items()
    ),
    Kind("environment", "variables", _variables, toml, _environment),
    Kind("API keys", "keys.toml", lambda: [KEYS], toml, _keys),
    Kind("certificates", "all.pem", _pem, _pem_lines, _pair),
    Kind("traces", "router.jsonl", _spans, json_lines, _traces),
    Kind("conversations", "data.jsonl", lambda: [CONVERSATIONS], json_lines, _data),
    Kind("prompts", "prompts.jsonl", lambda: [QUESTIONS], json_lines, read_questions),
    Kind("wheel", "tiny-1-py3-none-any.whl", _archives, some_bytes, _wheel),
    Kind("token", "token", lambda: [b"slip_abc\n"], some_bytes, read_token),
    Kind(
        "store password",
        "password",
        lambda: [b"secret\n"],
        some_bytes,
        lambda path: StoreOptions("redis://127.0.0.1", password_file=path),
    ),
)
