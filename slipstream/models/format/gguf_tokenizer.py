"""Tokenizers in the metadata of GGUF files.

Every field under `tokenizer.` is read, known to change no token, or refused by its name. Names of
pre-tokenizers are llama.cpp's; their patterns are those of the models' own tokenizer.json.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from slipstream.core.errors import WeightsError
from slipstream.models.format.gguf_file import TABLES, GgufFile
from slipstream.text.template import default_template
from slipstream.text.tokenizer import TextTokenizer

_NORMAL, _UNKNOWN, CONTROL, USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""Token types. Control tokens are special; those that users define are found before merging."""
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_KNOWN = {*TABLES["read"], *TABLES["without_effect"]}
"""Fields that are read, and those for tasks other than going on from a text."""
_TEMPLATE = "tokenizer.chat_template"
_MARKED = re.compile(r"<[|\uff5c].+[|\uff5c]>|<(start|end)_of_turn>|<end_of_utterance>")
"""Names of control tokens, also where files have no types or call them plain."""
_WITH_SPACES = {"<unk>", "<s>", "<|endoftext|>"}


@dataclass(frozen=True, slots=True)
class _Split:
    """Splitting of texts before merging, for tokenizers of these names: what matches a pattern is
    apart, one pattern after the other, and words are those of GPT-2 at last with `is_gpt2`;
    `whole_words`: words that are tokens as they are are not merged; `bos`: the default of
    `add_bos_token`."""

    names: Sequence[str]
    patterns: Sequence[str] = ()
    is_gpt2: bool = False
    whole_words: bool = False
    bos: bool = False
    is_nfc: bool = False


_SPLITS = {name: _Split(**own) for own in TABLES["splits"] for name in own["names"]}


def read_gguf_tokenizer(file: GgufFile) -> TextTokenizer:
    """Return the tokenizer in a GGUF file. Raises `WeightsError` for one that can't be read."""
    fields = TokenizerFields(file)
    kinds = {"gpt2": _byte_level, "llama": _sentence_pieces}
    kind = fields.get("model", str)
    if kind not in kinds:
        raise fields.refused("model", f"but only {' and '.join(kinds)} can be read")
    return _assembled(file, fields, kinds[kind](fields))


class GgufFields:
    """The fields of a GGUF file whose names begin with `prefix`."""

    def __init__(self, file: GgufFile, prefix: str) -> None:
        self.file, self.prefix = file, prefix
        self.given = {
            name.removeprefix(prefix): value
            for name, value in file.fields.items()
            if name.startswith(prefix)
        }
        self.names_read: set[str] = set()

    def get(self, name: str, kind: type, *default: Any) -> Any:
        """Return a field of a type, or the default; of a list by layers the number that all have.

        Files also have 0 and 1 for flags, and whole numbers for others. Raises `WeightsError` for a
        field without either, of another type, or not the same for all layers.
        """
        self.names_read.add(name)
        if name not in self.given:
            if default:
                return default[0]
            raise WeightsError(f"{self.file.name} lacks {self.prefix}{name}")
        value = self.given[name]
        if kind is not list and isinstance(value, list) and value == value[:1] * len(value):
            value = value[0] if value else value
        if isinstance(value, int) and (kind is float or (kind is bool and value in (0, 1))):
            value = kind(value)
        is_number = kind is not float or (isinstance(value, float) and math.isfinite(value))
        is_whole = kind is not int or not isinstance(value, bool)
        if not (isinstance(value, kind) and is_number and is_whole):
            raise self.refused(name, f"but must be of the type {kind.__name__}")
        return value

    def refused(self, name: str, reason: str) -> WeightsError:
        """Return the error for a field."""
        value = self.given.get(name)
        return WeightsError(f"{self.file.name} has {self.prefix}{name} of {value!r:.40}, {reason}")


class TokenizerFields(GgufFields):
    """The fields under `tokenizer.` of a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        """Raise `WeightsError` for a field that is not read and may change a token."""
        super().__init__(file, "tokenizer.ggml.")
        for name, value in self.given.items():
            if name not in _KNOWN and value not in (False, "", []):
                raise self.refused(name, "which is not supported")
        if "tokenizer.rwkv.world" in file.fields:
            raise WeightsError(f"{file.name} has a tokenizer.rwkv.world, which is not supported")
        given = self._strings("tokens")
        self.tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(given)]
        types = self.get("token_type", list, [_NORMAL] * len(given))
        if any(kind not in range(_BYTE + 1) for kind in types):
            raise self.refused("token_type", f"but must have numbers from 0 to {_BYTE}")
        if len(types) != len(given):
            raise WeightsError(f"{file.name} has {len(given)} tokens, but {len(types)} token types")
        self.types: list[int] = [
            CONTROL if kind == _NORMAL and _MARKED.fullmatch(token) else kind
            for token, kind in zip(self.tokens, types, strict=True)
        ]
        end, table = len(self.tokens), file.tensors.get("token_embd.weight")
        rows = end if table is None else table.shape[0]
        # Before the names that fill the embedding up, and added tokens past it.
        while end and (
            self.tokens[end - 1] == f"[PAD{end - 1}]"
            or (end > rows and self.types[end - 1] != _NORMAL)
        ):
            end -= 1
        self.tokens, self.types = self.tokens[:end], self.types[:end]
        if len(set(self.tokens)) < end:
            token, count = Counter(self.tokens).most_common(1)[0]
            raise WeightsError(f"{file.name} has the token {token!r:.40} {count} times")

    def numbers(self, *kinds: int) -> dict[str, int]:
        """Return the tokens of these types, with their ids."""
        typed = enumerate(zip(self.tokens, self.types, strict=True))
        return {token: number for number, (token, kind) in typed if kind in kinds}

    def merges(self) -> list[tuple[str, str]]:
        """Return the pairs that are merged, the first ones first."""
        pairs = [merge.partition(" ")[::2] for merge in self._strings("merges")]
        if odd := [one + other for one, other in pairs if not (one and other)]:
            raise WeightsError(f"{self.file.name} has a merge {odd[0]!r:.40}, which is no pair")
        return list(dict.fromkeys(pairs))  # of two the first is meant

    def _strings(self, name: str) -> list[str]:
        value: list[str] = self.get(name, list)
        if not all(isinstance(it, str) for it in value):
            raise self.refused(name, "but must have texts")
        return value


def _byte_level(fields: TokenizerFields) -> Tokenizer:
    split = _split(fields)
    if fields.get(name := "add_space_prefix", bool, False):
        raise fields.refused(name, "which is not supported for gpt2")
    vocab = {token: number for number, token in enumerate(fields.tokens)}
    model = models.BPE(vocab=vocab, merges=fields.merges(), ignore_merges=split.whole_words)
    backend = Tokenizer(model)
    if split.is_nfc:
        backend.normalizer = normalizers.NFC()
    parts: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in split.patterns
    ]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.is_gpt2))
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    backend.decoder = decoders.ByteLevel()
    return backend


def _split(fields: TokenizerFields) -> _Split:
    name = fields.get("pre", str)
    if name not in _SPLITS:
        raise fields.refused("pre", f"but only {', '.join(_SPLITS)} can be read")
    return _SPLITS[name]


def _sentence_pieces(fields: TokenizerFields) -> Tokenizer:
    """Return a SentencePiece model of the kind BPE: pieces are merged by their scores."""
    vocab = {token: number for number, token in enumerate(fields.tokens)}
    unknown = fields.get("unknown_token_id", int, 0)
    if not 0 <= unknown < len(fields.tokens):
        raise fields.refused("unknown_token_id", f"but there are {len(fields.tokens)} tokens")
    merges = _merges_by_score(vocab, fields.get("scores", list))
    backend = Tokenizer(
        models.BPE(
            vocab, merges, unk_token=fields.tokens[unknown], fuse_unk=True, byte_fallback=True
        )
    )
    has_prefix = fields.get("add_space_prefix", bool, True)
    before: list[Any] = [normalizers.Prepend("▁")] if has_prefix else []
    after: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return backend


def _merges_by_score(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the pairs of pieces that make others, the likeliest first."""
    if len(scores) < len(vocab):
        raise WeightsError(f"the tokenizer has {len(vocab)} pieces, but {len(scores)} scores")
    found = [
        (-scores[number], vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
        for piece, number in vocab.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    if len(found) > 1 and len({score for score, *_ in found}) == 1:
        raise WeightsError("the tokenizer has the same score for all pieces, so no order of merges")
    return [(one, other) for *_, one, other in sorted(found)]


def _assembled(file: GgufFile, fields: TokenizerFields, backend: Tokenizer) -> TextTokenizer:
    special, named = fields.numbers(CONTROL, _UNKNOWN), fields.numbers(USER_DEFINED)
    # Phi-3 reads no spaces and line breaks behind most of them, which no field says.
    is_bpe = fields.get("model", str) == "gpt2"
    is_phi = file.fields["general.architecture"] == "phi3" and not is_bpe
    stripped = special.keys() - _WITH_SPACES if is_phi else ()
    backend.add_special_tokens(
        [AddedToken(token, special=True, rstrip=token in stripped) for token in special]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token in named])
    roles = {role: fields.get(f"{key}_token_id", int, None) for role, key in _ROLES.items()}
    names = {
        f"{role}_token": fields.tokens[number]
        for role, number in roles.items()
        if number is not None and 0 <= number < len(fields.tokens)
    }
    if fields.get("add_bos_token", bool, not is_bpe or _split(fields).bos):
        if "bos_token" not in names:
            fields.get(name := "bos_token_id", int)
            raise fields.refused(name, "which is no token, but texts begin with it")
        bos = names["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, roles["bos"])]
        )
    others = [name for name in names.values() if name not in special]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in others])
    return TextTokenizer.from_parts(backend.to_str().encode(), _chat_template(file), names)


def _chat_template(file: GgufFile) -> str:
    found = {
        name.removeprefix(_TEMPLATE).removeprefix(".") or "default": value
        for name, value in file.fields.items()
        if name == _TEMPLATE or name.startswith(f"{_TEMPLATE}.")  # a list of names is no template
    }
    if odd := [text for text in found.values() if not isinstance(text, str)]:
        raise WeightsError(f"{file.name} has a chat template {odd[0]!r:.40}, which is no text")
    return default_template(found)
