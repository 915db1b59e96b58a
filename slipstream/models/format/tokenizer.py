"""Tokenizers of models: without transformers, and kept as plain files once it has read them.

How a model's files become a tokenizer is transformers' business, release by release. What it made
of the same files is read back without it: ids, templates and numbers are the same ones.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import tokenizers_dir
from slipstream.core.errors import ModelMismatch, SlipstreamError
from slipstream.models.format.digests import file_digest, weights_digest
from slipstream.models.machine import read_kept as read_file
from slipstream.models.machine import write_kept
from slipstream.text.tokenizer import TextTokenizer, vocab_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SUFFIXES = {".json", ".jinja", ".txt", ".model"}
_INDEX = ".safetensors.index.json"
_READING = 3
"""Number of our own way to read tokenizers: what an older one kept is read anew."""


def text_tokenizer(tokenizer: Any) -> TextTokenizer:
    """Return a tokenizer without transformers; of several chat templates, the default one.

    One that is of this kind already is returned as it is. Raises `ModelMismatch` for a tokenizer
    that the `tokenizers` library can't stand in for.
    """
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer
    from transformers import PreTrainedTokenizerFast

    name = type(tokenizer).__name__
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelMismatch(f"{name} is no tokenizer of the tokenizers library, which is needed")
    if tokenizer.split_special_tokens:
        raise ModelMismatch(
            f"{name} reads special tokens as plain text, which chat templates can't work with"
        )
    return TextTokenizer.from_parts(
        _json(tokenizer), _chat_template(tokenizer.chat_template), tokenizer.special_tokens_map
    )


def _json(tokenizer: "PreTrainedTokenizerFast") -> bytes:
    try:
        return tokenizer.backend_tokenizer.to_str().encode()
    except Exception as error:  # parts written in Python have no JSON
        raise ModelMismatch(
            f"{type(tokenizer).__name__} has parts that can't leave this process ({error})"
        ) from None


def _chat_template(template: str | dict[str, str] | None) -> str:
    """Return the default template; one for tools stands in it where they are given."""
    if not isinstance(template, dict):
        return template or ""
    plain, with_tools = template.get("default") or "", template.get("tool_use")
    if not (plain and with_tools):
        return plain
    return f"{{% if tools %}}{with_tools}{{% else %}}{plain}{{% endif %}}"


@dataclass(frozen=True, slots=True)
class NumberedTokenizer:
    """A tokenizer and its numbers. `text` is transformers' own object where texts can't be read
    without it."""

    text: TextTokenizer | Any
    vocab_hash: str
    num_ids: int
    eos_token_id: int | None

    @classmethod
    def of(cls, tokenizer: Any) -> "NumberedTokenizer":
        """Return the numbers of a transformers tokenizer."""
        vocab = tokenizer.get_vocab()
        num_ids = 1 + max(vocab.values(), default=-1)
        return cls(tokenizer, vocab_hash(vocab), num_ids, tokenizer.eos_token_id)


def fitted(tokenizer: NumberedTokenizer, path: Path, vocab_size: int) -> NumberedTokenizer:
    """Return a tokenizer for a model with so many embeddings: tokens that were added past them,
    which it can't read, are left out, so that their names are plain text.

    Raises `ModelMismatch` where others are past them.
    """
    if tokenizer.num_ids > vocab_size:
        tokenizer = _trimmed(tokenizer, vocab_size)
    if not 0 < tokenizer.num_ids <= vocab_size:
        raise ModelMismatch(
            f"the tokenizer in {path} goes up to id {tokenizer.num_ids - 1}, "
            f"but the model knows {vocab_size} tokens"
        )
    return tokenizer


def _trimmed(tokenizer: NumberedTokenizer, vocab_size: int) -> NumberedTokenizer:
    text: TextTokenizer = text_tokenizer(tokenizer.text)
    parts = text.parts()
    content = json.loads(parts.json)
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["id"] < vocab_size
    ]
    text = TextTokenizer.from_parts(json.dumps(content).encode(), *parts[1:])
    # What begins every text may be past the embeddings, too.
    ids = (*text.ids(), *text.encode("", add_special_tokens=True))
    end = tokenizer.eos_token_id
    ends = None if end is None or end >= vocab_size else end
    return NumberedTokenizer(text, text.vocab_hash, 1 + max(ids), ends)


def read_kept(folder: Path, gguf: Path | None) -> NumberedTokenizer | None:
    """Return the tokenizer of a model's files as it was kept, None where it is not."""
    found: NumberedTokenizer | None = read_file(_path(folder, gguf), "the tokenizer", _of_kept)
    return found


def _of_kept(kept: Any) -> NumberedTokenizer:
    text = TextTokenizer.from_parts(
        kept["json"].encode(), kept["chat_template"], kept["special_tokens"]
    )
    eos, vocab_hash, num_ids = kept["eos_token_id"], str(kept["vocab_hash"]), int(kept["num_ids"])
    if not vocab_hash or num_ids < 1:
        raise ValueError(f"it has {num_ids} ids and the vocabulary's hash {vocab_hash!r}")
    return NumberedTokenizer(text, vocab_hash, num_ids, None if eos is None else int(eos))


def keep(tokenizer: Any, folder: Path, gguf: Path | None) -> NumberedTokenizer:
    """Return a transformers tokenizer with its numbers, and keep it where texts can be read
    without transformers."""
    found = NumberedTokenizer.of(tokenizer)
    try:
        text = text_tokenizer(tokenizer)
    except SlipstreamError:  # readers of texts raise it
        return found
    parts = text.parts()
    kept = {
        "json": parts.json.decode(),
        "chat_template": parts.chat_template,
        "special_tokens": dict(parts.special_tokens),
        "vocab_hash": found.vocab_hash,
        "num_ids": found.num_ids,
        "eos_token_id": found.eos_token_id,
    }
    write_kept(_path(folder, gguf), "the tokenizer", json.dumps(kept, ensure_ascii=False))
    return NumberedTokenizer(text, found.vocab_hash, found.num_ids, found.eos_token_id)


def _path(folder: Path, gguf: Path | None) -> Path:
    """The file that a tokenizer is kept in: its name is a digest of all that it depends on."""
    releases = f"{version('transformers')} {version('tokenizers')} {_READING}"
    digest = hashlib.sha256(releases.encode())
    if gguf is not None:
        digest.update(weights_digest(gguf).encode())
    else:
        for path in _files(folder):
            digest.update(f"{file_digest(path)} {path.relative_to(folder).as_posix()}\n".encode())
    return tokenizers_dir() / f"{digest.hexdigest()}.json"


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model directory that its tokenizer may depend on."""
    found = [*folder.glob("*"), *folder.glob("additional_chat_templates/*")]
    for path in sorted(found):
        if path.suffix in _SUFFIXES and not path.name.endswith(_INDEX) and path.is_file():
            yield path
