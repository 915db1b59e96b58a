"""`slipstream train`: the commands that make drafts for a target. Knows options and printing."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import count_bar
from slipstream.cli.training.train_data import data
from slipstream.cli.training.train_decision import decision
from slipstream.cli.training.train_glide import glide
from slipstream.cli.training.train_quantise import quantise
from slipstream.core.errors import TrainingError
from slipstream.models.loading import find_sources, find_tokenizer
from slipstream.models.store.resolve import resolve
from slipstream.models.tokenizer import text_tokenizer
from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
from slipstream.text.prompts import encode_answer, encode_prompt
from slipstream.train.data import Document, ReadLimits, read_data
from slipstream.train.ngrams import CountSettings, count, fitting, write_store

app = typer.Typer(help="Train draft models.", no_args_is_help=True)
app.command()(data)
app.command()(decision)
app.command()(glide)
app.command()(quantise)

Target = Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")]
Data = Annotated[
    list[Path],
    typer.Option(help="JSON lines, or a directory of shards of `train data`; repeatable."),
]


@app.callback()
def _group() -> None:
    """Train draft models."""


@app.command()
@with_flags
def ngrams(
    *,
    target: Target,
    data: Data,
    out: Annotated[Path, typer.Option(help="The file to write, NAME.ngrams.safetensors.")],
    settings: CountSettings,
) -> None:
    """Count what a target wrote, as a store of n-grams that drafts without a model."""
    if not out.name.endswith(SUFFIX):
        raise TrainingError(f"the store is to be {out}, but its name must end with {SUFFIX}")
    tokenizer = find_tokenizer(*find_sources(resolve(target)))  # without the weights
    text = text_tokenizer(tokenizer.text)
    limits = ReadLimits(tokenizer.num_ids, 1 << 17, partial(encode_answer, text))
    documents: list[Document] = []
    for path in data:
        file = read_data(path, limits, encode=partial(encode_prompt, text))
        typer.echo(f"{path}: {len(file.documents)} texts, {file.num_generated} generated tokens")
        documents += file.documents
    with count_bar("tokens") as progress:
        counted = count(documents, settings, progress=progress)
    tables = fitting(counted, settings, tokenizer.num_ids)
    num_tokens = sum(len(one.ids) - one.num_prompt for one in documents)
    header = StoreHeader(tokenizer.vocab_hash, tokenizer.num_ids, settings.max_context, num_tokens)
    write_store(out, tables, header)
    store = NgramFile(out)
    typer.echo(
        f"{out}: {store.num_contexts} contexts of {num_tokens} tokens,"
        f" {store.num_bytes / 2**20:.1f} MiB"
    )
