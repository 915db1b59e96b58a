"""`slipstream bench telemetry`: what traces and metrics cost. Knows only options and printing."""

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from slipstream.cli.bench_flags import LimitOption, OutputFlags, PromptFlags, PromptsOption
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.flags import with_flags
from slipstream.cli.up import StackFlags
from slipstream.core.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.bench.pairs.plan import PairPlan
    from slipstream.bench.telemetry.run import Told


@dataclass(frozen=True, slots=True)
class TelemetryFlags:
    """What is asked and how often, and what is told meanwhile."""

    pairs: Annotated[int, Option(help="Runs with telemetry and without, in turn.")] = 9
    concurrency: Annotated[int, Option(help="Users who ask again when answered.")] = 1
    num_requests: Annotated[int, Option(help="Of all users in a run.")] = 8
    prompts: PromptsOption = None
    limit: LimitOption = None
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    trace_ratio: Annotated[float, Option(help="Share of requests that are traced.")] = 0.1
    otlp_endpoint: Annotated[
        str | None,
        Option(help="URL of an OTLP/gRPC collector; default: one in here, which counts."),
    ] = None
    settle_s: Annotated[
        float, Option(help="Seconds after each run, in which the rest of it is exported.")
    ] = 6.0

    def plan(self) -> "PairPlan":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.pairs.plan import PairPlan
        from slipstream.bench.telemetry.stacks import OFF, ON

        return PairPlan(
            OFF,
            ON,
            PromptFlags(self.prompts, self.limit).questions(),
            SamplingParams(),  # greedy, so that both say the same
            self.concurrency,
            self.num_requests,
            self.pairs,
            self.max_new_tokens,
        )

    def told(self) -> "Told":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.telemetry.run import Told

        return Told(self.trace_ratio, self.otlp_endpoint, self.settle_s)


@with_flags
def telemetry(flags: TelemetryFlags, models: StackFlags, output: OutputFlags) -> None:
    """What traces and metrics cost: the same requests with telemetry off, and with all of it on.

    Target, draft and router are started here twice. Those with telemetry trace a share of the
    requests, send spans and metrics by OTLP, and have their Prometheus pages read every second.
    The ratio is the median over pairs of neighbouring runs, between the values that it lies within
    in 95% of all cases.
    """
    check_writable(output)
    plan, told = flags.plan(), flags.told()
    models.fetch()
    from slipstream.bench.telemetry.run import run_telemetry

    with step_bar(plan.num_runs) as advance:
        services = models.plan(port=0)
        figures = asyncio.run(run_telemetry(plan, told, services, advance=advance))
    from slipstream.bench.environment import environment
    from slipstream.bench.pairs import report
    from slipstream.bench.telemetry.report import telling_lines

    console = figures_console()
    console.print(report.pair_table(figures, plan, what="telemetry"))
    for line in [*report.remarks(figures), *telling_lines(figures)]:
        console.print(line, markup=False, soft_wrap=True)
    facts = {**environment(models.device or "cpu"), "command": command()}
    facts |= {"model": models.model, "draft": models.draft}
    shown = {name: value for name, value in asdict(plan).items() if name != "questions"}
    write(output, {"environment": facts | shown | asdict(told), "telemetry": figures})
