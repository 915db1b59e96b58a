"""`slipstream train ngrams`: count a target's texts. Knows only options and printing."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.core.errors import TrainingError

if TYPE_CHECKING:
    from slipstream.models.tokenizer import NumberedTokenizer
    from slipstream.train.data import Document
    from slipstream.train.ngrams import CountSettings


@dataclass(frozen=True, slots=True)
class CountFlags:
    """Options that decide what the store holds."""

    max_context: Annotated[int, typer.Option(help="Longest context, in tokens.")] = 3
    min_count: Annotated[
        int, typer.Option(help="Contexts that were seen less often are left out.")
    ] = 2
    max_mb: Annotated[
        float, typer.Option(help="Largest file; rarer contexts are left out for it.")
    ] = 8.0


@with_flags
def ngrams(
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    data: Annotated[
        list[Path],
        typer.Option(help="JSON lines, or a directory of shards of `train data`; repeatable."),
    ],
    out: Annotated[Path, typer.Option(help="The file to write, NAME.ngrams.safetensors.")],
    counts: CountFlags,
) -> None:
    """Count what a target wrote, as a store of n-grams that drafts without a model."""
    from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
    from slipstream.train.ngrams import count, fitting, write_store

    if not out.name.endswith(SUFFIX):
        raise TrainingError(f"the store is to be {out}, but its name must end with {SUFFIX}")
    settings, tokenizer = _settings(counts), _tokenizer(target)
    documents = _documents(data, tokenizer)
    tables = fitting(count(documents, settings, progress=_progress), settings, tokenizer.num_ids)
    num_tokens = sum(len(one.ids) - one.num_prompt for one in documents)
    header = StoreHeader(
        tokenizer.vocab_hash,
        tokenizer.num_ids,
        settings.max_context,
        num_tokens,
    )
    write_store(out, tables, header)
    store = NgramFile(out)
    typer.echo(
        f"{out}: {store.num_contexts} contexts of {num_tokens} tokens,"
        f" {store.num_bytes / 2**20:.1f} MiB"
    )


def _settings(flags: CountFlags) -> "CountSettings":
    from slipstream.train.ngrams import CountSettings

    return CountSettings(flags.max_context, flags.min_count, round(flags.max_mb * 2**20))


def _tokenizer(target: str) -> "NumberedTokenizer":
    """Return the target's tokenizer; its weights are not loaded."""
    from slipstream.models.loading import find_sources, find_tokenizer
    from slipstream.models.store.resolve import resolve

    return find_tokenizer(*find_sources(resolve(target)))


def _documents(data: list[Path], tokenizer: "NumberedTokenizer") -> "list[Document]":
    from functools import partial

    from slipstream.models.tokenizer import text_tokenizer
    from slipstream.text.prompts import encode_prompt
    from slipstream.train.data import ReadLimits, read_data

    encode = partial(encode_prompt, text_tokenizer(tokenizer.text))
    limits = ReadLimits(tokenizer.num_ids, max_tokens=1 << 17)
    documents: list[Document] = []
    for path in data:
        file = read_data(path, limits, encode=encode)
        typer.echo(f"{path}: {len(file.documents)} texts, {file.num_generated} generated tokens")
        documents += file.documents
    return documents


def _progress(done: int, total: int) -> None:
    typer.echo(f"counted contexts of {done} of {total} tokens")
