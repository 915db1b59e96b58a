"""`slipstream bench peers`: Slipstream beside the rest. Knows only options and printing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from slipstream.bench.peers.configurations import concurrent_configs, parse_configs, parse_endpoints
from slipstream.bench.peers.plan import PeersPlan, parse_concurrencies
from slipstream.cli.bench_flags import (
    LimitOption,
    ModelFlags,
    OutputFlags,
    PromptFlags,
    PromptsOption,
)
from slipstream.cli.bench_output import (
    check_writable,
    figures_console,
    model_facts,
    prompt_facts,
    show_lines,
    stack_of,
    step_bar,
    write,
)
from slipstream.cli.flags import with_flags
from slipstream.core.errors import InvalidRequest, PromptTooLong

if TYPE_CHECKING:
    from slipstream.bench.peers.options import PeerOptions
    from slipstream.bench.peers.run import Record
    from slipstream.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ConfigurationFlags:
    """Configurations, and what single ones need."""

    arms: Annotated[
        str,
        Option(help="With commas between: hf, llama.cpp, a method as of bench speed, ..; or all."),
    ] = ""
    assistant: Annotated[
        str | None, Option(help="Assistant model of hf-assistant: as the target, or a directory.")
    ] = None
    gguf: Annotated[
        Path | None, Option(help="GGUF file of the target for llama.cpp; default: as published.")
    ] = None
    endpoint: Annotated[
        list[str], Option(help="NAME=URL of a server with OpenAI's API; repeatable.")
    ] = field(default_factory=list)
    endpoint_token_file: Annotated[
        Path | None, Option(help="File with the bearer token of the endpoints.")
    ] = None
    lookup_tokens: Annotated[int, Option(help="prompt_lookup_num_tokens of hf-lookup.")] = 10
    llama_lookup_tokens: Annotated[
        int, Option(help="num_pred_tokens of llama.cpp's lookup; it advises 2 on CPUs, 10 on GPUs.")
    ] = 2
    llama_repack: Annotated[
        bool, Option(help="Let llama.cpp repack weights; its AMX kernels crash on some machines.")
    ] = True

    def token(self) -> str | None:
        """Return the bearer token for endpoints. Raises `InvalidRequest` for an unreadable file."""
        if self.endpoint_token_file is None:
            return None
        try:
            return self.endpoint_token_file.read_text(encoding="utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self.endpoint_token_file} can't be read ({error})") from None


@dataclass(frozen=True, slots=True)
class AskFlags:
    """Prompts, and how they are sent."""

    prompts: PromptsOption = None
    limit: LimitOption = None
    categories: Annotated[str, Option(help="Only these, with commas between.")] = ""
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    concurrency: Annotated[str, Option(help="Requests at once, one after the other.")] = "1,4,16"
    concurrent_limit: Annotated[
        int, Option(help="Prompts at each concurrency above 1, rounded up to whole batches.")
    ] = 16
    concurrent_arms: Annotated[
        str,
        Option(
            help="Configurations at a concurrency above 1; default: the others, plain and best."
        ),
    ] = ""
    warmup: Annotated[int, Option(help="Short unmeasured batches of each configuration first.")] = 1
    settle_s: Annotated[float, Option(help="Pause before each batch.")] = 0.05

    def prompt_flags(self) -> PromptFlags:
        """Return where the questions are."""
        return PromptFlags(self.prompts, self.limit, self.categories)


@dataclass(frozen=True, slots=True)
class PageFlags:
    """Other places for the figures."""

    markdown: Annotated[Path | None, Option(help="Also write tables for a page here.")] = None
    plot: Annotated[Path | None, Option(help="Also draw PNG and SVG into this directory.")] = None

    def check(self) -> None:
        """Raise an error for what can't be written, before hours are spent."""
        if self.markdown is not None:
            from slipstream.bench.environment import check_writable as check

            check(self.markdown)
        if self.plot is not None:
            from slipstream.bench.charts import check_folder

            check_folder(self.plot)


@with_flags
def peers(
    which: ConfigurationFlags,
    ask: AskFlags,
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
    check_writable(output)
    endpoints = parse_endpoints(which.endpoint)
    configs = parse_configs(which.arms, endpoints)
    at_once = concurrent_configs(configs, ask.concurrent_arms)
    questions = ask.prompt_flags().questions()
    concurrencies = parse_concurrencies(ask.concurrency)
    stack_of(models).fetch()
    from slipstream.bench.peers.prompts import encoded, target_tokenizer

    tokenizer = target_tokenizer(models.target)
    plan = PeersPlan(
        encoded(questions, tokenizer),
        configs,
        at_once,
        concurrencies,
        ask.concurrent_limit,
        ask.max_new_tokens,
        ask.warmup,
        ask.settle_s,
    )
    options = _options(which, models, plan)
    _check_lengths(plan, models.target)
    record = _measured(plan, options)
    _finish(record, plan, tokenizer, pages, output, _facts(ask, models, plan, options))


def _measured(plan: PeersPlan, options: "PeerOptions") -> "Record":
    """Return all results, or those so far when interrupted."""
    from slipstream.bench.peers.run import Record, run_peers

    record = Record()
    try:
        with _interrupted_by_sigterm(), step_bar(plan.num_steps) as advance:
            run_peers(plan, options, record, advance=advance)
    except KeyboardInterrupt:
        if not record.samples:
            raise
    return record


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Have SIGTERM interrupt as Ctrl-C does: long runs end by what limits their time."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _options(which: ConfigurationFlags, models: ModelFlags, plan: PeersPlan) -> "PeerOptions":
    from slipstream.bench.peers.options import PeerOptions

    return PeerOptions(
        models.target,
        models.draft,
        models.dtype,
        models.threads or len(os.sched_getaffinity(0)),
        models.device,
        plan.num_positions,
        stack_of(models).plan(port=0),
        models.profile,
        which.assistant,
        which.gguf,
        which.token(),
        which.lookup_tokens,
        which.llama_lookup_tokens,
        which.llama_repack,
    )


def _check_lengths(plan: PeersPlan, target: str) -> None:
    from slipstream.bench.peers.prompts import context_length

    limit = context_length(target)
    if limit is not None and plan.num_positions > limit:
        raise PromptTooLong(
            f"the longest prompt and {plan.max_new_tokens} new tokens are {plan.num_positions}"
            f" tokens, which exceed the context of {limit}"
        )


def _finish(
    record: "Record",
    plan: PeersPlan,
    tokenizer: "TextTokenizer",
    pages: PageFlags,
    output: OutputFlags,
    facts: dict[str, Any],
) -> None:
    """Print and write the figures."""
    from slipstream.bench.peers import report
    from slipstream.bench.peers.figures import peers_figures

    figures = peers_figures(record, plan.configs, tokenizer.decode)
    write(output, {"environment": facts, "peers": figures})
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
        from slipstream.bench.peers.charts import save_charts

        show_lines(f"plot {path}" for path in save_charts(figures, pages.plot))


def _facts(
    ask: AskFlags, models: ModelFlags, plan: PeersPlan, options: "PeerOptions"
) -> dict[str, Any]:
    return {
        **model_facts(models),
        **prompt_facts(ask.prompt_flags()),
        "draft": models.draft,
        "threads": options.threads,
        "assistant": options.assistant,
        "num_prompts": len(plan.prompts),
        "max_new_tokens": plan.max_new_tokens,
        "concurrencies": plan.concurrencies,
        "concurrent_limit": plan.concurrent_limit,
        "warmup": plan.warmup,
        "settle_s": plan.settle_s,
    }
