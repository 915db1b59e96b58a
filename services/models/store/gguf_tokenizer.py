"""Builds a tokenizer from the metadata of a GGUF file whose pre-tokenizer we know.

transformers' own reading of that metadata drops how texts are split before merging, and older
releases mix up the special tokens, so that ids, and with them generated text, would depend on it.
"""

from collections.abc import Mapping
from typing import Any

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF token types of special tokens, and of others that are found before anything is merged."""
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    "llama-bpe": _CONTRACTIONS + r"\p{N}{1,3}" + _PUNCTUATION,
    "qwen2": _CONTRACTIONS + r"\p{N}" + _PUNCTUATION,
}
"""How texts are split, by the pre-tokenizer's name. `smollm` takes GPT-2's pattern, and digits one
by one."""
_KINDS = {"smollm", *_PATTERNS}
_WHOLE_WORDS_FIRST = {"llama-bpe"}
"""Pre-tokenizers whose words are not merged where they are tokens as they are."""


def read_tokenizer(fields: Mapping[str, Any]) -> Any | None:
    """A transformers tokenizer, or None when the file's kind of tokenizer is not known here."""
    if fields.get("tokenizer.ggml.model") != "gpt2":
        return None
    return _build(fields) if fields.get("tokenizer.ggml.pre") in _KINDS else None


def _build(fields: Mapping[str, Any]) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokens = fields["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{role}_token": tokens[number]
        for role, key in roles.items()
        if (number := fields.get(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(fields, tokens), clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens(special)
    tokenizer.model_max_length = fields[f"{fields['general.architecture']}.context_length"]
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    return tokenizer


def _byte_level_bpe(fields: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    kind = fields["tokenizer.ggml.pre"]
    pairs = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocab,
        merges=[(a, b) for a, b in pairs],
        ignore_merges=kind in _WHOLE_WORDS_FIRST,
    )
    tokenizer = Tokenizer(model)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    by_type = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token, at in by_type if at == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, at in by_type if at == _USER_DEFINED]
    )
    return tokenizer


def _pre_tokenizer(kind: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    split = pre_tokenizers.Split(Regex(_PATTERNS[kind]), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, to_bytes])
