"""`slipstream train`: the commands that make drafts for a target. Knows options and printing."""

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from slipstream.cli.flags import with_flags
from slipstream.cli.progress import count_bar, progress_of
from slipstream.core.errors import TrainingError
from slipstream.models.format.resolve import resolve
from slipstream.models.format.tokenizer import find_tokenizer
from slipstream.models.loaded import find_sources
from slipstream.ngrams.store_file import SUFFIX, NgramFile, StoreHeader
from slipstream.text.prompts import encode_answer, encode_prompt
from slipstream.train import quantise as four_bits
from slipstream.train.data import Document, ReadLimits, read_data
from slipstream.train.data_run import DataRun, make_plan, write_data
from slipstream.train.decision_run import DecisionRun, run_decision
from slipstream.train.group import train_group
from slipstream.train.ngrams import CountSettings, count, fitting, write_store
from slipstream.train.run import EagleRun, GlideRun, train_draft
from slipstream.train.trainer import Check, TrainHooks, TrainReport

app = typer.Typer(help="Train draft models.", no_args_is_help=True)
Data = Annotated[
    list[Path],
    typer.Option(help="JSON lines, or a directory of shards of `train data`; repeatable."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each process.", min=1)]


@app.command()
@with_flags
def data(run: DataRun) -> None:
    """Write training text: the target's answers to prompts."""
    console = Console(highlight=False, soft_wrap=True)
    plan = make_plan(run)
    total, num_talks = len(plan.shards), sum(map(len, plan.shards))
    skipped = f"; too long, left out: {plan.num_skipped}" if plan.num_skipped else ""
    console.print(f"{num_talks} conversations in {total} shards{skipped}")
    with progress_of(console=console) as bar:
        task = bar.add_task("loading the target", total=total)

        def report(done: int, num_tokens: int, speed: float) -> None:
            line = f"shard {done} of {total}: {num_tokens} tokens, {speed:.0f} tokens/s"
            bar.update(task, completed=done, description=line)
            if not console.is_terminal:
                console.print(line)

        done = write_data(run, plan, clock=time.monotonic, report=report)
    console.print(f"{run.out}: {done} of {total} shards finished")


@app.command()
@with_flags
def decision(run: DecisionRun) -> None:
    """Train the model that estimates the acceptance probability of each drafted token."""
    run = replace(run, command=_command())
    with count_bar("prompts") as progress:
        outcome = run_decision(run, clock=time.monotonic, progress=progress)
    verdict = "better" if outcome.weights else "not better"
    typer.echo(
        f"{verdict} than calibrated confidence on {outcome.num_tokens} held-out tokens:"
        f" {outcome.loss:.4f} and {outcome.calibrated_loss:.4f} nats per token"
    )
    typer.echo(f"weights {outcome.weights}" if outcome.weights else "no weights written")


Device = Annotated[
    str, typer.Option(help="cpu, cuda or cuda:N; under torchrun cuda is a GPU for each.")
]


@app.command()
@with_flags
def glide(run: GlideRun, *, device: Device = "cpu", threads: Threads = None) -> None:
    """Train a GliDe draft for a target model.

    Several processes share every batch: torchrun --nproc-per-node 8 --no-python slipstream ...
    """
    _train(run, device, threads)


@app.command()
@with_flags
def eagle3(run: EagleRun, *, device: Device = "cpu", threads: Threads = None) -> None:
    """Train an EAGLE-3 head for a target model, in the layout that other engines read too.

    Several processes share every batch: torchrun --nproc-per-node 8 --no-python slipstream ...
    """
    _train(run, device, threads)


def _train(run: GlideRun | EagleRun, device: str, threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    run = replace(run, command=_command())
    with train_group(device) as group:
        console = Console(highlight=False, soft_wrap=True, quiet=not group.is_lead)
        with progress_of(console=console) as bar:
            training = bar.add_task("training", total=1.0)

            def report(result: TrainReport) -> None:
                bar.update(training, completed=result.done)
                console.print(
                    f"step {result.step}, epoch {result.epoch}: loss {result.loss:.4f},"
                    f" lr {result.lr:.2e}, {result.tokens_per_second:.0f} tokens/s"
                )

            def check(result: Check) -> None:
                lags, depths = (
                    " ".join(f"{rate:.3f}" for rate in rates)
                    for rates in (result.heldout.acceptance, result.heldout.survival)
                )
                best = ", best, exported" if result.is_best else ""
                console.print(
                    f"step {result.step}: acceptance by lag {lags}, chains by depth {depths},"
                    f" {result.heldout.length:.3f} tokens per round{best}"
                )

            train_draft(run, TrainHooks(time.monotonic, report, check), group=group)


@app.command()
@with_flags
def quantise(run: four_bits.QuantiseRun, *, threads: Threads = None) -> None:
    """Write a draft's weights in blocks of 4 bits, rounded by GPTQ, for native code."""
    if threads is not None:
        torch.set_num_threads(threads)
    run = replace(run, command=_command())
    with count_bar("quantising") as set_to:
        outcome = four_bits.quantise(
            run, progress=lambda stage, done, total: set_to(done, total, description=stage)
        )
    for name, found in (("before", outcome.before), ("after", outcome.after)):
        typer.echo(
            f"{name}: acceptance at lag 0 {found.acceptance[0]:.4f},"
            f" at lag 4 {found.acceptance[4]:.4f}, {found.length:.3f} tokens per round"
        )
    typer.echo(f"{outcome.path}: {outcome.path.stat().st_size / 1e6:.1f} MB")


@app.command()
@with_flags
def ngrams(
    *,
    target: Annotated[str, typer.Option(help="Target model: an alias, a path or a hub id.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="The file to write, NAME.ngrams.safetensors.")],
    settings: CountSettings,
) -> None:
    """Count what a target wrote, as a store of n-grams that drafts without a model."""
    if not out.name.endswith(SUFFIX):
        raise TrainingError(f"the store is to be {out}, but its name must end with {SUFFIX}")
    tokenizer = find_tokenizer(*find_sources(resolve(target)))  # without the weights
    text = tokenizer.text
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


def _command() -> tuple[str, ...]:
    """Return the command line that is running, for the provenance of what it writes."""
    return ("slipstream", *sys.argv[1:])
