"""Conversion of a GGUF file to a model directory in transformers' own format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipstream.models.dtypes import DTYPES
from slipstream.models.format.folder import reading
from slipstream.models.format.gguf_file import GgufFile
from slipstream.models.format.gguf_tokenizer import read_gguf_tokenizer
from slipstream.models.native.gguf_weights import GgufSource


def convert(gguf: Path, into: Path) -> None:
    """Write the model in `gguf` to the directory `into`, in bfloat16.

    Raises `WeightsError` when the file can't be read as a causal language model.
    """
    with quiet_transformers(), reading(gguf.name):
        model = GgufSource(gguf, DTYPES["bfloat16"], is_dense=True).reference(is_lent=False)
        tokenizer = read_gguf_tokenizer(GgufFile(gguf))
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep bars and warnings of transformers back; errors still raise, and all comes back
    afterwards as it was."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
