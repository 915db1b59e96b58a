"""The parts of a transformers tokenizer that text needs, so that all processes read text alike."""

from typing import TYPE_CHECKING, Any

from slipstream.core.errors import ModelMismatch
from slipstream.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def text_tokenizer(tokenizer: Any) -> TextTokenizer:
    """The same tokenizer without transformers; of several chat templates, the default one.

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
    if isinstance(template, dict):
        template = template.get("default")
    return template or ""
