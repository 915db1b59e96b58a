"""`slipstream bench store`: what Redis costs. Knows only options and printing."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.flags import with_flags
from slipstream.cli.up import StackFlags
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.pairs.plan import PairPlan


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """What is asked, and how often."""

    store_url: Annotated[str, Option(help="The Redis; see docs/sessions.md.")]
    pairs: Annotated[int, Option(help="Runs with either store, in turn.")] = 9
    concurrency: Annotated[int, Option(help="Users who ask again when answered.")] = 1
    num_requests: Annotated[int, Option(help="Of all users in a run.")] = 8
    prompts: PromptsOption = None
    limit: LimitOption = None
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    temperature: Annotated[float, Option(help="0 is greedy.")] = 0.0
    seed: Annotated[int, Option(help="Of sampling above temperature 0.")] = 0

    def plan(self) -> "PairPlan":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.pairs.plan import PairPlan
        from slipstream.bench.store.routers import MEMORY, REDIS

        return PairPlan(
            MEMORY,
            REDIS,
            PromptFlags(self.prompts, self.limit).questions(),
            SamplingParams(temperature=self.temperature, seed=self.seed),
            self.concurrency,
            self.num_requests,
            self.pairs,
            self.max_new_tokens,
        )


@with_flags
def store(flags: StoreFlags, models: StackFlags, output: OutputFlags) -> None:
    """What sessions in Redis cost: the same requests through a router with and one without.

    Target, draft and both routers are started here. The ratio is the median over pairs of
    neighbouring runs, between the values that it lies within in 95% of all cases.
    """
    check_writable(output)
    plan = flags.plan()
    models.fetch()
    with step_bar(plan.num_runs) as advance:
        figures = asyncio.run(_measure(plan, flags.store_url, models, advance))
    from slipstream.bench.environment import environment
    from slipstream.bench.pairs import report

    console = figures_console()
    console.print(report.pair_table(figures, plan, what="sessions in"))
    for line in report.remarks(figures):
        console.print(line, markup=False, soft_wrap=True)
    facts = {**environment(models.device or "cpu"), "command": command(), "model": models.model}
    shown = {name: value for name, value in asdict(plan).items() if name != "questions"}
    write(output, {"environment": facts | shown, "store": figures})


async def _measure(
    plan: "PairPlan", store_url: str, models: StackFlags, advance: Callable[[str], None]
) -> dict[str, Any]:
    from slipstream.bench.pairs.run import pair_figures, run_pairs
    from slipstream.bench.store.routers import two_routers
    from slipstream.client import AsyncClient

    async with AsyncExitStack() as opened:
        routers = two_routers(models.plan(port=0), store_url, say=lambda name, line: None)
        clients = {
            name: await opened.enter_async_context(AsyncClient(address))
            for name, address in (await opened.enter_async_context(routers)).items()
        }
        return pair_figures(plan, await run_pairs(plan, clients, advance=advance))
