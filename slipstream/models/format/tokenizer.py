"""Tokenizers of models: read from tokenizer.json or GGUF files, and kept ready in one file each.

A directory's tokenizer.json is read as the `tokenizers` library has it, with the tokens and roles
that tokenizer_config.json adds.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from slipstream.config import tokenizers_dir
from slipstream.core.errors import ModelMismatch, WeightsError
from slipstream.models.format.digests import file_digest, weights_digest
from slipstream.models.format.folder import TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, reading
from slipstream.models.format.gguf_file import MAX_STRINGS, GgufFile
from slipstream.models.format.gguf_tokenizer import read_gguf_tokenizer
from slipstream.models.machine import read_kept as read_file
from slipstream.models.machine import release, write_kept
from slipstream.text.template import default_template
from slipstream.text.tokenizer import TextTokenizer

_MORE_TEMPLATES = "additional_chat_templates"
_ROLES_FILE, _ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_OWN_ROLE = re.compile(r"\w+_token", re.ASCII)
_OWN_ROLES = ("extra_special_tokens", "model_specific_special_tokens")
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_SUFFIXES = {".json", ".jinja", ".txt", ".model"}
_INDEX = ".safetensors.index.json"
_READING = 7
"""Number of our own way to read tokenizers: what an older one kept is read anew."""


def find_tokenizer(folder: Path, gguf: Path | None) -> "NumberedTokenizer":
    """Return the tokenizer of a model: as it was kept, or as its files have it now.

    Raises `WeightsError`, and `ModelMismatch` for one that reads special tokens as plain text.
    """
    return read_kept(folder, gguf) or _keep(_read(folder, gguf), folder, gguf)


def _read(folder: Path, gguf: Path | None) -> TextTokenizer:
    with reading(f"the tokenizer in {folder}"):
        if gguf:
            return read_gguf_tokenizer(GgufFile(gguf))
        found = _of_folder(folder)
        if (last := max(found.ids(), default=0)) >= MAX_STRINGS:  # loops go through all numbers
            raise WeightsError(
                f"the tokenizer in {folder} has the id {last}, but {MAX_STRINGS - 1} is the most"
            )
        return found


def _of_folder(folder: Path) -> TextTokenizer:
    config = _object(folder / TOKENIZER_CONFIG)
    if "added_tokens_decoder" not in config:  # as older files name roles and tokens
        config |= _object(folder / _ROLES_FILE)
        older = _object(folder / _ADDED_FILE)
        config["added_tokens_decoder"] = {id: {"content": text} for text, id in older.items()}
    if config.get("split_special_tokens"):
        raise ModelMismatch(
            f"{folder.name} reads special tokens as plain text, which chat templates can't work"
            " with"
        )
    backend, roles = Tokenizer.from_file(str(folder / TOKENIZER)), _roles(config)
    added = backend.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    backend.add_tokens(list(_added_tokens(config, roles, special)))
    return TextTokenizer.from_parts(
        backend.to_str().encode(), default_template(_templates(folder, config)), roles
    )


def _roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that templates may name: the usual roles, then those of this model."""
    named = {name: it for name, it in config.items() if _OWN_ROLE.fullmatch(name)}
    found = {name: it for name, it in named.items() if name in _ROLES or isinstance(it, str | dict)}
    for field in _OWN_ROLES:
        own = config.get(field)
        found |= own if isinstance(own, dict) else {}
    return {name: _content(it) for name, it in {**dict.fromkeys(_ROLES), **found}.items() if it}


def _added_tokens(
    config: Mapping[str, Any], roles: Mapping[str, str], special: Collection[str]
) -> Iterator[AddedToken]:
    """Yield the tokens that are named beside tokenizer.json, in the order of ids; those that are
    `special` there stay so."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    named = [*roles.values(), *([] if isinstance(extra, dict) else map(_content, extra))]
    given = config.get("added_tokens_decoder", {})
    for _, token in sorted(given.items(), key=lambda item: int(item[0])):
        flags = {name: token[name] for name in _FLAGS if name in token}
        is_special = flags.get("special", False) or token["content"] in special
        yield AddedToken(**{**flags, "special": is_special})
    yield from (AddedToken(text, special=True) for text in named)


def _content(token: Any) -> str:
    text = token["content"] if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise WeightsError(f"{TOKENIZER_CONFIG} has a token {text!r:.40}, which is no text")
    return text


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} where there is none."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(found, dict):
        raise WeightsError(f"{path} is no object")
    return found


def _templates(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the chat template, or several by name: files come before the configuration."""
    more = {path.stem: path for path in (folder / _MORE_TEMPLATES).glob("*.jinja")}
    files = {"default": folder / TEMPLATE, **more}
    found = {name: it.read_text(encoding="utf-8") for name, it in files.items() if it.is_file()}
    given = found or config.get("chat_template")
    return {it["name"]: it["template"] for it in given} if isinstance(given, list) else given


@dataclass(frozen=True, slots=True)
class NumberedTokenizer:
    """A tokenizer and its numbers."""

    text: TextTokenizer
    vocab_hash: str
    num_ids: int
    eos_token_id: int | None

    @classmethod
    def of(cls, text: TextTokenizer) -> "NumberedTokenizer":
        """Return a tokenizer with its numbers."""
        end = text.parts().special_tokens.get("eos_token")
        ends = None if end is None else text.token_id(end)
        return cls(text, text.vocab_hash, 1 + max(text.ids(), default=-1), ends)


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
    parts = tokenizer.text.parts()
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


def _keep(text: TextTokenizer, folder: Path, gguf: Path | None) -> NumberedTokenizer:
    found, parts = NumberedTokenizer.of(text), text.parts()
    kept = {
        "json": parts.json.decode(),
        "chat_template": parts.chat_template,
        "special_tokens": dict(parts.special_tokens),
        "vocab_hash": found.vocab_hash,
        "num_ids": found.num_ids,
        "eos_token_id": found.eos_token_id,
    }
    write_kept(_path(folder, gguf), "the tokenizer", json.dumps(kept, ensure_ascii=False))
    return found


def _path(folder: Path, gguf: Path | None) -> Path:
    """The file that a tokenizer is kept in: its name is a digest of all that it depends on."""
    digest = hashlib.sha256(f"{release('tokenizers')} {_READING}".encode())
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
