"""`slipstream bench leaks`: what many short sessions leave behind. Knows only options, printing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.engine import load_async
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, EngineFlags

if TYPE_CHECKING:
    from slipstream.bench.leaks.findings import Course
    from slipstream.bench.leaks.plan import LeakPlan
    from slipstream.client.embedded_aio import AsyncEmbedded


@dataclass(frozen=True, slots=True)
class VisitFlags:
    """How many sessions there are, and how they end."""

    num_sessions: Annotated[int, Option(help="Short sessions in all.")] = 5000
    concurrency: Annotated[int, Option(help="How many at a time.")] = 8
    cancel_share: Annotated[
        float, Option(help="Share that is left after a random number of tokens, 0 included.")
    ] = 0.3
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 8
    warmup: Annotated[int, Option(help="Sessions before the first reading.")] = 100
    seed: Annotated[int, Option(help="Of who is left, and when.")] = 0
    prompts: PromptsOption = None
    limit: LimitOption = None

    def prompt_flags(self) -> PromptFlags:
        """Where the questions are."""
        return PromptFlags(self.prompts, self.limit)

    def plan(self) -> "LeakPlan":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.leaks.plan import LeakPlan

        return LeakPlan(
            self.prompt_flags().questions(),
            self.num_sessions,
            self.concurrency,
            self.cancel_share,
            self.max_new_tokens,
            self.warmup,
            self.seed,
        )


@with_flags
def leaks(visits: VisitFlags, engine: EngineFlags, output: OutputFlags) -> None:
    """Memory over thousands of short sessions, some of which are cancelled.

    The engines run in this process, and it is this process that is looked at, whenever no session
    runs. Ends with 1 if ended sessions hold anything, or if any has failed.
    """
    check_writable(output)
    plan = visits.plan()
    engines = load_async(engine)
    with step_bar(1 + len(plan.parts)) as advance:
        course, about = asyncio.run(_measure(plan, engines, advance))
    figures = course.figures()
    _show(figures)
    environment = {**_environment(engine), **about, **_facts(visits.prompt_flags().path(), plan)}
    write(output, {"environment": environment, "leaks": figures})
    if not course.is_clean:
        raise typer.Exit(1)


async def _measure(
    plan: "LeakPlan", engines: "AsyncEmbedded", advance: Callable[[str], None]
) -> tuple["Course", dict[str, Any]]:
    """The readings, and what answered."""
    from slipstream.bench.leaks.footprint import Gauge
    from slipstream.bench.leaks.run import LeakRun, run_leaks
    from slipstream.client import AsyncClient

    async with AsyncClient.of(engines) as client:
        info = await client.model_info()
        about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
        return await run_leaks(LeakRun(plan, client, Gauge(engines).read, advance)), about


def _show(figures: dict[str, Any]) -> None:
    from slipstream.bench.leaks.findings import lines
    from slipstream.bench.leaks.report import leaks_table

    console = figures_console()
    console.print(leaks_table(figures))
    console.print()
    for line in lines(figures):
        console.print(line, markup=False, soft_wrap=True)


def _environment(engine: EngineFlags) -> dict[str, Any]:
    from slipstream.bench.environment import environment
    from slipstream.models.store.digests import weights_digests
    from slipstream.models.store.resolve import find_local

    target = engine.target or DEFAULT_TARGET
    return {
        **environment(engine.device or "cpu"),
        "command": command(),
        "draft": engine.draft or "glide",
        "weights_sha256": {target: weights_digests(find_local(target))},
    }


def _facts(prompts: Path, plan: "LeakPlan") -> dict[str, Any]:
    from slipstream.models.store.digests import file_digest

    return {
        "prompts": prompts.name,
        "prompts_sha256": file_digest(prompts),
        "num_prompts": len(plan.questions),
        "num_sessions": plan.num_sessions,
        "concurrency": plan.concurrency,
        "cancel_share": plan.cancel_share,
        "max_new_tokens": plan.max_new_tokens,
        "warmup": plan.warmup,
        "seed": plan.seed,
    }
