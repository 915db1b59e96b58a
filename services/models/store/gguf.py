"""GGUF files for transformers: conversion to bf16 safetensors, and tokenizers from their metadata.

transformers' own reading of that metadata drops how texts are split before merging, and older
releases mix up the special tokens, so that ids, and with them generated text, would depend on it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from slipstream.core.errors import WeightsError
from slipstream.models.store.folder import brief
from slipstream.models.store.gguf_file import GgufFile

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


def gguf_options(gguf: Path) -> dict[str, Any]:
    """Return options of `from_pretrained` to read a GGUF file as plain dense weights."""
    import transformers

    options: dict[str, Any] = {"gguf_file": gguf.name}
    # Newer releases keep weights in GGUF blocks without this option; older ones never do.
    if config := getattr(transformers, "GgufConfig", None):
        options["quantization_config"] = config(dequantize=True)
    return options


def convert(gguf: Path, into: Path) -> None:
    """Write the model in `gguf` to the directory `into` in transformers' own format.

    Raises `WeightsError` when the file can't be read as a causal language model.
    """
    with quiet_transformers(reads_gguf=True):
        try:
            model, tokenizer = _read(gguf)
        except Exception as error:  # parsers of broken files raise anything
            raise WeightsError(f"{gguf.name} can't be read as a model ({brief(error)})") from error
        # The weights are plain now; a leftover note that they are GGUF blocks would mislead.
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)


def _read(gguf: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    GgufFile(gguf)  # checks all sizes, which other readers believe
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, **gguf_options(gguf)
    )
    return model, read_gguf_tokenizer(gguf)


def read_gguf_tokenizer(gguf: Path) -> Any:
    """The tokenizer in a GGUF file: by our reader where that has its kind, else by transformers."""
    from transformers import AutoTokenizer

    tokenizer = read_tokenizer(GgufFile(gguf).fields)
    return tokenizer or AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)


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
        vocab=vocab, merges=[(a, b) for a, b in pairs], ignore_merges=kind in _WHOLE_WORDS_FIRST
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


@contextmanager
def quiet_transformers(*, reads_gguf: bool) -> Iterator[None]:
    """Errors still raise; bars and warnings come back afterwards as they were.

    The bar that is drawn while a GGUF file is dequantised obeys no switch, so that standard
    error is set aside meanwhile.
    """
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(StringIO()) if reads_gguf else nullcontext():
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
