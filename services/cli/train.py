"""`slipstream train`: the commands that make drafts for a target. Knows options and printing."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.progress import count_bar
from slipstream.cli.training.train_data import data
from slipstream.cli.training.train_decision import decision
from slipstream.cli.training.train_glide import glide
from slipstream.cli.training.train_quantise import quantise
from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.models.tokenizer import NumberedTokenizer
    from slipstream.train.data import Document

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


@app.command("export-hf")
def export_hf(
    weights: Annotated[Path, typer.Argument(help="Weights of a draft trained with --no-cross.")],
    *,
    target: Target,
    out: Annotated[Path, typer.Option(help="Directory for the checkpoint; must not exist.")],
) -> None:
    """Write a draft without cross-attention as a checkpoint that transformers loads."""
    from slipstream.models.glide.glide_export import export_hf as export

    export(weights, target, out)
    typer.echo(out)


@app.command()
def coverage(
    *,
    target: Target,
    data: Data,
    sizes: Annotated[str, typer.Option(help="Head sizes, separated by commas.")] = (
        "1024,2048,4096,8192,16384,32768"
    ),
    heldout: Annotated[int, typer.Option(help="Prompts held out.", min=1)] = 60,
) -> None:
    """Print which share of held-out answers heads of several sizes can name."""
    from slipstream.models.glide.torch_parts import model_parts
    from slipstream.models.loading import load_target_parts
    from slipstream.models.tokenizer import text_tokenizer
    from slipstream.text.prompts import encode_prompt
    from slipstream.train.data import ReadLimits, read_data
    from slipstream.train.first_draft import coverage as measure
    from slipstream.train.first_draft import forced_ids

    numbers = _numbers(sizes)
    loaded = load_target_parts(target)
    size = model_parts(loaded.model).vocab_size
    encode = partial(encode_prompt, text_tokenizer(loaded.tokenizer))
    files = [read_data(path, ReadLimits(size), encode=encode) for path in data]
    documents = [document for file in files for document in file.documents]
    shares = measure(
        documents, numbers, vocab_size=size, forced=forced_ids(loaded), num_heldout=heldout
    )
    for number, share in zip(numbers, shares, strict=True):
        typer.echo(f"{number:>7} of {size} tokens cover {100 * share:.2f}%")


@app.command()
def ngrams(
    *,
    target: Target,
    data: Data,
    out: Annotated[Path, typer.Option(help="The file to write, NAME.ngrams.safetensors.")],
    max_context: Annotated[int, typer.Option(help="Longest context, in tokens.")] = 3,
    min_count: Annotated[
        int, typer.Option(help="Contexts that were seen less often are left out.")
    ] = 2,
    max_mb: Annotated[
        float, typer.Option(help="Largest file, in MiB; the rarest contexts are left out for it.")
    ] = 8.0,
) -> None:
    """Count what a target wrote, as a store of n-grams that drafts without a model."""
    from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
    from slipstream.train.ngrams import CountSettings, count, fitting, write_store

    if not out.name.endswith(SUFFIX):
        raise TrainingError(f"the store is to be {out}, but its name must end with {SUFFIX}")
    settings = CountSettings(max_context, min_count, round(max_mb * 2**20))
    tokenizer = _tokenizer(target)
    documents = _documents(data, tokenizer)
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


def _tokenizer(target: str) -> "NumberedTokenizer":
    """Return the target's tokenizer; its weights are not loaded."""
    from slipstream.models.loading import find_sources, find_tokenizer
    from slipstream.models.store.resolve import resolve

    return find_tokenizer(*find_sources(resolve(target)))


def _documents(data: list[Path], tokenizer: "NumberedTokenizer") -> "list[Document]":
    from slipstream.models.tokenizer import text_tokenizer
    from slipstream.text.prompts import encode_answer, encode_prompt
    from slipstream.train.data import ReadLimits, read_data

    text = text_tokenizer(tokenizer.text)
    encode = partial(encode_prompt, text)
    limits = ReadLimits(tokenizer.num_ids, 1 << 17, partial(encode_answer, text))
    documents: list[Document] = []
    for path in data:
        file = read_data(path, limits, encode=encode)
        typer.echo(f"{path}: {len(file.documents)} texts, {file.num_generated} generated tokens")
        documents += file.documents
    return documents


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TrainingError(
            f"sizes are {text!r}, but must be numbers with commas between"
        ) from None
