"""`slipstream bench peers`: Slipstream beside other engines. Knows only options and printing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.bench.peers.plan import (
    PeersPlan,
    concurrent_configs,
    parse_concurrencies,
    parse_configs,
    parse_endpoints,
)
from slipstream.cli.benchmarks.bench_flags import ModelFlags, OutputFlags, QuestionFlags, plan_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.options import read_token
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.core.errors import PromptTooLong
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.bench.peers.run import PeersRecord
    from slipstream.bench.peers.settings import PeersOptions


_RUN_FACTS = ("max_new_tokens", "concurrencies", "concurrent_limit", "warmup", "settle_s")


@dataclass(frozen=True, slots=True)
class ConfigurationFlags:
    """Configurations, and options of single ones."""

    arms: str = option(
        "",
        "Configurations, separated by commas: hf, llama.cpp, a method as of bench speed, ..;"
        " or all.",
    )
    assistant: str | None = option(
        None, "Assistant model of hf-assistant: as the target, or a directory."
    )
    gguf: Path | None = option(
        None, "GGUF file of the target for llama.cpp; default: as published."
    )
    endpoint: tuple[str, ...] = option((), "NAME=URL of a server with OpenAI's API; repeatable.")
    endpoint_token_file: Path | None = option(None, "File with the bearer token of the endpoints.")
    lookup_tokens: int = option(10, "prompt_lookup_num_tokens of hf-lookup.")
    llama_lookup_tokens: int = option(
        2, "num_pred_tokens of llama.cpp's lookup; it advises 2 on CPUs, 10 on GPUs."
    )
    llama_repack: bool = option(
        True, "Let llama.cpp repack weights; its AMX kernels crash on some machines."
    )


@dataclass(frozen=True, slots=True)
class LevelFlags:
    """Concurrencies, and what runs at each."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    concurrency: str = option("1,4,16", "Numbers of requests at once, separated by commas.")
    concurrent_limit: int = option(
        16, "Prompts at each concurrency above 1, rounded up to whole batches."
    )
    concurrent_arms: str = option(
        "", "Configurations at a concurrency above 1; default: the others, plain and best."
    )
    warmup: int = option(1, "Short unmeasured batches of each configuration first.")
    settle_s: float = option(0.05, "Pause before each batch, in seconds.")


@dataclass(frozen=True, slots=True)
class PageFlags:
    """Other places for the figures."""

    markdown: Path | None = option(None, "Also write tables for a page to this file.")
    plot: Path | None = option(None, "Also draw PNG and SVG into this directory.")

    def check(self) -> None:
        """Raise an error for what can't be written, before hours are spent."""
        if self.markdown is not None:
            from slipstream.bench.harness import check_writable

            check_writable(self.markdown)
        if self.plot is not None:
            from slipstream.bench.report import check_folder

            check_folder(self.plot)


@with_flags
def peers(
    which: ConfigurationFlags,
    prompts: QuestionFlags,
    levels: LevelFlags,
    models: ModelFlags,
    pages: PageFlags,
    output: OutputFlags,
) -> None:
    """Slipstream beside transformers, llama.cpp and servers: same weights, prompts and limits.

    All answer each prompt in turn, greedily, every system in a process of its own. Those that can't
    run here are skipped, with the reason. Ratios are of tokens per second, prefill included.
    """
    models.check()
    pages.check()
    output.check()
    configs = parse_configs(which.arms, parse_endpoints(which.endpoint))
    at_once = concurrent_configs(configs, levels.concurrent_arms)
    questions = prompts.questions()
    concurrencies = parse_concurrencies(levels.concurrency)
    models.stack().fetch()
    from slipstream.bench.peers.figures import peers_figures
    from slipstream.bench.peers.settings import encoded, target_tokenizer

    tokenizer = target_tokenizer(models.target)
    limits = levels.concurrent_limit, levels.max_new_tokens, levels.warmup, levels.settle_s
    plan = PeersPlan(encoded(questions, tokenizer), configs, at_once, concurrencies, *limits)
    options = _options(which, models, plan)
    _check_lengths(plan, models.target)
    record = _measured(plan, options)
    run = plan_facts(plan, len(plan.prompts), *_RUN_FACTS)
    engines = {name: getattr(options, name) for name in ("draft", "threads", "assistant")}
    facts = {**models.facts(), **prompts.facts(), **engines, **run}
    figures = peers_figures(record, plan.configs, tokenizer.decode)
    output.write({"environment": facts, "peers": figures})
    _show(figures, facts, pages)


def _options(which: ConfigurationFlags, models: ModelFlags, plan: PeersPlan) -> "PeersOptions":
    from slipstream.bench.peers.settings import PeersOptions

    token = which.endpoint_token_file
    return PeersOptions(
        **asdict(models) | {"threads": models.threads or len(os.sched_getaffinity(0))},
        num_positions=plan.num_positions,
        stack=models.stack().plan(port=0),
        assistant=which.assistant,
        gguf=which.gguf,
        token=None if token is None else read_token(token),
        lookup_tokens=which.lookup_tokens,
        llama_lookup_tokens=which.llama_lookup_tokens,
        llama_repack=which.llama_repack,
    )


def _check_lengths(plan: PeersPlan, target: str) -> None:
    from slipstream.bench.peers.settings import context_length

    limit = context_length(target)
    if limit is not None and plan.num_positions > limit:
        raise PromptTooLong(
            f"the longest prompt and {plan.max_new_tokens} new tokens are {plan.num_positions}"
            f" tokens, which exceed the context of {limit}"
        )


def _measured(plan: PeersPlan, options: "PeersOptions") -> "PeersRecord":
    """Return all results, or those so far when interrupted."""
    from slipstream.bench.peers.run import PeersRecord, run_peers

    record = PeersRecord()
    try:
        with _interrupted_by_sigterm(), step_bar(plan.num_steps) as advance:
            run_peers(plan, options, record, advance=advance)
    except KeyboardInterrupt:
        if not record.samples:
            raise
    return record


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Have SIGTERM interrupt as Ctrl-C does: schedulers send it when the time is up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(figures: dict[str, Any], facts: dict[str, Any], pages: PageFlags) -> None:
    """Print the figures, and write page and plots."""
    from slipstream.bench.peers import report

    console = figures_console()
    for shown in report.tables(figures):
        console.print(shown.title, style="bold")
        shown.title = None  # which would be wrapped to the width of the table
        console.print(shown)
        console.print()
    show_lines(report.lines(figures))
    if pages.markdown is not None:
        pages.markdown.write_text(report.page(figures, facts), encoding="utf-8")
    if pages.plot is not None:
        from slipstream.bench.peers.report import save_charts

        show_lines(f"plot {path}" for path in save_charts(figures, pages.plot))
