"""`slipstream train coverage`: what a trimmed head leaves out. Knows only options and printing."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core.errors import TrainingError


def coverage(
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    data: Annotated[
        list[Path], typer.Option(help="JSON lines, or a directory of shards; repeatable.")
    ],
    sizes: Annotated[str, typer.Option(help="Head sizes, with commas between.")] = (
        "1024,2048,4096,8192,16384,32768"
    ),
    heldout: Annotated[int, typer.Option(help="Prompts held out.", min=1)] = 60,
) -> None:
    """Print which share of held-out answers heads of several sizes can name."""
    from slipstream.models.loading import load_target_parts
    from slipstream.models.target_parts import target_parts
    from slipstream.models.tokenizer import text_tokenizer
    from slipstream.text.prompts import encode_prompt
    from slipstream.train.coverage import coverage as measure
    from slipstream.train.data import ReadLimits, read_data
    from slipstream.train.start import forced_ids

    numbers = _numbers(sizes)
    loaded = load_target_parts(target)
    size = target_parts(loaded.model).vocab_size
    encode = partial(encode_prompt, text_tokenizer(loaded.tokenizer))
    files = [read_data(path, ReadLimits(size), encode=encode) for path in data]
    documents = [document for file in files for document in file.documents]
    shares = measure(
        documents, numbers, vocab_size=size, forced=forced_ids(loaded), num_heldout=heldout
    )
    for number, share in zip(numbers, shares, strict=True):
        typer.echo(f"{number:>7} of {size} tokens cover {100 * share:.2f}%")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(
            f"sizes are {text!r}, but must be numbers with commas between"
        ) from None
