"""Kinds of files beside a model's weights: tokenizers, templates, profiles, n-grams and what is
kept of them."""

import json
import os
import tempfile
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.files.kinds import Kind
from fuzz.files.mutations import NUMBERS, changed, json_values, some_bytes
from slipstream.drafting.profile_file import ModelPair, read_profile
from slipstream.models.format import tokenizer as kept_tokenizers
from slipstream.ngrams.store_file import ARRAYS, NgramFile, checksum
from slipstream.text.template import ChatTemplate
from slipstream.text.tokenizer import TextTokenizer
from support.commands import ROOT

PROFILE = ROOT / "slipstream/models/weights/smollm2-135m-glide/profile.json"
MESSAGES = [
    {"role": "system", "content": "Be <|end|> brief."},
    {"role": "user", "content": "hello"},
]
PARTS: tuple[Any, ...] = (
    *(None, [], {}, {"type": "ByteLevel"}, {"type": "Fuse"}, {"type": "NFC"}, {"type": "x"}),
    {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": "(?<=(x"}, "behavior": "Removed", "invert": True},
    {"type": "Replace", "pattern": {"String": ""}, "content": "xy" * 500},
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "<|end|>"},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Prepend", "prepend": "<|end|>" * 300},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "content": "h", "start": 2**40, "stop": 2**40},
    {"type": "Metaspace", "replacement": "\u0000", "prepend_scheme": "always", "split": True},
    {"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": []},
    {"type": "CTC", "pad_token": "h", "word_delimiter_token": "e", "cleanup": True},
    {"type": "WordPiece", "prefix": "", "cleanup": True, "vocab": {}, "unk_token": "x"},
    {"type": "Unigram", "unk_id": 9, "vocab": [["a", float("-1e300")]], "byte_fallback": True},
    {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"},
    {"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"]], "dropout": 0.5},
    {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
    [{"id": 2**32 - 1, "content": "x", "special": True}],
    [{"id": 0, "content": "", "special": True, "normalized": True, "lstrip": True, "rstrip": True}],
)
"""Parts of a tokenizer that are rare or hostile."""
SNIPPETS = (
    *Path(__file__).with_name("snippets.jinja").read_text().splitlines(),
    *("\0", "\n", "{{ " + "(" * 300, "[" * 2000, "{{ 'a' ~ " * 900, "{% if x %}" * 99),
)
ANSWERED = [*MESSAGES, {"role": "assistant", "content": "there"}, {"role": "user", "content": "x"}]


def _profile(path: Path) -> None:
    models = json.loads(PROFILE.read_bytes())["models"]
    read_profile(path, ModelPair(**models))


def _ngrams(path: Path) -> None:
    """Open a store, and look contexts of every length up."""
    store = NgramFile(path)
    for latest in ((1, 2, 3, 4, 5, 6, 7, 8), (3, 2, 1), (0,), (2**31, 2**40)):
        for token, probability in store.after(latest):
            assert 0 <= token < store.header.vocab_size and 0 <= probability <= 1.01


@cache
def _stores() -> list[bytes]:
    import numpy as np

    from slipstream.ngrams.store_file import StoreHeader
    from slipstream.train.data import Document
    from slipstream.train.ngrams import CountSettings, count, fitting, write_store

    settings = CountSettings(min_count=1, max_context=3)
    texts = [Document(np.arange(40, dtype=np.int32) % size, 1) for size in (3, 7, 11)]
    tables = count(texts, settings, progress=lambda done, total: None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        header = StoreHeader("t" * 64, 50, 3, 0)
        write_store(path, fitting(tables, settings, 50), header)
        return [path.read_bytes()]


def _broken_store(random: Random, data: bytes) -> bytes:
    """Break the header or the arrays of a store, whose checksum then often is right again."""
    size = int.from_bytes(data[:8], "little")
    about, whole = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    for _ in range(random.choice((1, 3, 20))):
        at = random.randrange(len(whole))
        odd = (random.choice(NUMBERS) % 2**32).to_bytes(4, "little")
        whole[at : at + 4] = odd[: len(whole) - at]
    if random.random() < 0.3:
        about = changed(random, about)
    if random.random() < 0.8:
        about = _checked(random, about, whole)
    head = json.dumps(about).encode("utf-8", "surrogatepass")
    found = len(head).to_bytes(8, "little") + head + whole
    return some_bytes(random, found) if random.random() < 0.1 else found


def _checked(random: Random, about: Any, whole: bytearray) -> Any:
    """Return the header with the checksum of the arrays, as far as it has both."""
    try:
        header = json.loads(about["__metadata__"]["ngrams"])
        if random.random() < 0.3:
            header = changed(random, header)
        parts = [slice(*about[name]["data_offsets"]) for name in ARRAYS]
        header["crc32"] = checksum([bytes(whole[part]) for part in parts])
        about["__metadata__"]["ngrams"] = json.dumps(header)
    except (TypeError, ValueError, LookupError, AttributeError):
        pass
    return about


def _bytes_and_pieces() -> list[Any]:
    from support.models.tiny_checkpoint import byte_tokenizer, piece_tokenizer, text_tokenizer

    return [text_tokenizer(make()) for make in (byte_tokenizer, piece_tokenizer)]


@cache
def _tokenizers() -> list[bytes]:
    """Return small tokenizers as JSON: each with its template and special tokens."""
    found = []
    for text in _bytes_and_pieces():
        parts = text.parts()
        values = {"json": json.loads(parts.json), "chat_template": parts.chat_template}
        found.append(json.dumps({**values, "special_tokens": dict(parts.special_tokens)}).encode())
    return found


def _tokenizer(path: Path) -> None:
    """Make a tokenizer of its parts, and read and write texts with it."""
    values = json.loads(path.read_bytes())
    tokens = values["special_tokens"]
    text = TextTokenizer.from_parts(
        json.dumps(values["json"]).encode(), values["chat_template"], tokens
    )
    _use(text)


def _use(text: TextTokenizer) -> None:
    """Use all of a tokenizer that a router uses."""
    ids = text.encode("hello wörld <|end|> 🙂\n", add_special_tokens=True, max_tokens=10_000)
    text.check_length("hello " * 9000, 100_000)
    text.decode(ids)
    text.as_text("a <|end|> b")
    for token in [*sorted(text.ids())[:300], -1, 2**31]:
        text.token_bytes(max(token, 0))
    assert len(text) > 0 and text.vocab_hash
    text.encode(text.render(MESSAGES), add_special_tokens=False)
    text.render(ANSWERED)


def _broken_tokenizer(random: Random, data: bytes) -> bytes:
    """Break a part of a tokenizer, its vocabulary seldom."""

    def change(random: Random, values: Any) -> Any:
        inner = values["json"]
        names = [name for name in inner if inner[name] is not None]
        name = random.choice(names)
        if name == "model" and isinstance(inner[name], dict) and random.random() < 0.7:
            kept = {key: at for key, at in inner["model"].items() if key not in ("vocab", "merges")}
            news = changed(random, kept)
            inner["model"].update(news if isinstance(news, dict) else {})
        elif random.random() < 0.2:
            inner[random.choice(list(inner))] = random.choice(PARTS)
        else:
            inner[name] = changed(random, inner[name])
        return values

    values = json.loads(data)
    for _ in range(random.choice((1, 1, 3))):
        values = change(random, values)
    return json.dumps(values).encode()


def _template(path: Path) -> None:
    source = path.read_bytes().decode("utf-8", "surrogatepass")
    tokens = {"bos_token": "<s>", "eos_token": "<|end|>"}
    template = ChatTemplate(source, tokens, lambda: datetime(2026, 11, 27))
    template.render(MESSAGES)
    template.render(ANSWERED, [{"type": "function", "function": {"name": "f", "parameters": {}}}])


def _sources() -> list[bytes]:
    found = [json.loads(data)["chat_template"] for data in _tokenizers()]
    found.append(
        "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{%- endif %}"
        "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if loop.first %}"
        "{{ bos_token }}{%- endif %}{%- set ns.last = loop.index %}"
        "{{ '<' + m['role'] + '>' + m.content | trim }}"
        "{%- if not loop.last %}{{ eos_token }}{%- endif %}{%- endfor %}{{ ns.last }}"
        "{%- for t in tools or [] %}{{ t | tojson }}{%- endfor %}"
    )
    return [source.encode() for source in found]


def _broken_template(random: Random, data: bytes) -> bytes:
    """Break a template: programs in it, its marks, its bytes."""
    text = data.decode()
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(text) + 1)
        end = at + random.choice((0, 0, 1, 10))
        if random.random() < 0.5:
            marks = ("%}", "}}", "{%", "{{")
            at = end = max(
                (text.find(mark, at) + 2 * (mark[0] != "{") for mark in marks), default=at
            )
        text = text[:at] + random.choice(SNIPPETS) + text[end:]
    found = text.encode("utf-8", "surrogatepass")
    return some_bytes(random, found).decode("utf-8", "replace").encode() if at % 9 == 0 else found


def _kept_tokenizer(path: Path) -> None:
    """Read a tokenizer that was kept: it is whole, or is read anew."""
    os.environ["SLIPSTREAM_CACHE"] = str(path.parent / "cache")
    folder = path.parent / "model"
    kept = kept_tokenizers._path(folder, None)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(path.read_bytes())
    if (found := kept_tokenizers.read_kept(folder, None)) is not None:
        assert found.num_ids and found.vocab_hash
        found.text.encode("hello", add_special_tokens=True)


@cache
def _kept() -> list[bytes]:
    found = []
    for data in _tokenizers():
        values = json.loads(data)
        about = {"vocab_hash": "h" * 64, "num_ids": 300, "eos_token_id": 0}
        found.append(json.dumps(values | about | {"json": json.dumps(values["json"])}).encode())
    return found


KINDS = (
    Kind("profile", "profile.json", lambda: [PROFILE.read_bytes()], json_values, _profile),
    Kind("n-grams", "tiny.ngrams.safetensors", _stores, _broken_store, _ngrams),
    Kind("kept tokenizer", "kept.json", _kept, json_values, _kept_tokenizer, refusals=()),
    Kind("tokenizer", "tokenizer.json", _tokenizers, _broken_tokenizer, _tokenizer),
    Kind("chat template", "chat_template.jinja", _sources, _broken_template, _template),
)
