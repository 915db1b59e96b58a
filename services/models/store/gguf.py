"""Turns a GGUF file into a directory of bf16 safetensors, tokenizer and template, once."""

from pathlib import Path
from typing import Any

from slipstream.core.errors import WeightsError
from slipstream.models.quiet import quiet_transformers
from slipstream.models.store.gguf_file import GgufFile
from slipstream.models.store.gguf_tokenizer import read_tokenizer
from slipstream.models.store.hub import brief


def gguf_options(gguf: Path) -> dict[str, Any]:
    """What `from_pretrained` must be told to read a GGUF file as plain dense weights."""
    import transformers

    options: dict[str, Any] = {"gguf_file": gguf.name}
    # Newer releases keep weights in GGUF blocks unless told otherwise; older ones never do.
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
    """The tokenizer in a GGUF file: by ourselves where we know its kind, else by transformers."""
    from transformers import AutoTokenizer

    tokenizer = read_tokenizer(GgufFile(gguf).fields)
    return tokenizer or AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
