"""Keeps transformers' own bars and advice off the terminal while we load or convert."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO


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
