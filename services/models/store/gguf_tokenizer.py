"""Builds a tokenizer from the metadata of a GGUF file whose pre-tokenizer we know.

transformers' own reading of that metadata drops the splitting of digits, and older releases mix
up the special tokens, so that ids, and with them generated text, would depend on its version.
"""

from pathlib import Path
from typing import Any

_CONTROL = 3
"""The GGUF token type of special tokens."""


def read_tokenizer(gguf: Path) -> Any | None:
    """A transformers tokenizer, or None when the file's kind of tokenizer is not known here."""
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    kind = [_value(fields, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    return _build(fields) if kind == ["gpt2", "smollm"] else None


def _value(fields: Any, key: str) -> Any:
    return fields[key].contents() if key in fields else None


def _build(fields: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokens = _value(fields, "tokenizer.ggml.tokens")
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{role}_token": tokens[number]
        for role, key in roles.items()
        if (number := _value(fields, f"tokenizer.ggml.{key}_token_id")) is not None
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(fields, tokens), clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens(special)
    tokenizer.model_max_length = _value(fields, "llama.context_length")
    tokenizer.chat_template = _value(fields, "tokenizer.chat_template")
    return tokenizer


def _byte_level_bpe(fields: Any, tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [merge.split(" ") for merge in _value(fields, "tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(a, b) for a, b in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = _value(fields, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    return tokenizer
