"""`slipstream bench rounds`: embedded against distributed. Knows only options and printing."""

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from slipstream.cli.benchmarks.bench_flags import ModelFlags, OutputFlags, QuestionFlags, plan_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.options import option

if TYPE_CHECKING:
    from slipstream.bench.rounds import RoundsEngine

DISTRIBUTED = "distributed"


@dataclass(frozen=True, slots=True)
class ComparisonFlags:
    """Length of replies, and the services that give them."""

    max_new_tokens: int = option(128, "Maximum number of tokens of a reply.")
    warmup: int = option(1, "Short unmeasured replies of each engine first.")
    router: str | None = option(None, "HOST:PORT of a router; default: services are started.")
    kv_delay_ms: float | None = option(
        None, "Also measure with so long a wire, each way, between draft and target."
    )

    def check(self) -> None:
        """Raise `InvalidRequest` for a delay that can't be."""
        if self.kv_delay_ms is None:
            return
        if self.router is not None:
            raise UnsupportedCombination("--kv-delay-ms needs services of our own, not --router")
        if not 0 < self.kv_delay_ms <= 1000:
            raise InvalidRequest(
                f"kv_delay_ms is {self.kv_delay_ms:g}, but must be above 0 and at most 1000"
            )

    @property
    def delayed(self) -> str:
        """Name of the services behind a longer wire."""
        return f"{self.kv_delay_ms:g} ms away"


@with_flags
def rounds(
    prompts: QuestionFlags, run: ComparisonFlags, models: ModelFlags, output: OutputFlags
) -> None:
    """Cost of a round embedded and distributed, and where the time goes.

    Both answer the same questions in this run, question by question in turn, greedily, drafting in
    every round. ratio is tokens per second over those of the embedded engine, as the caller sees
    them. The router's own part of a round is the rest beside engines, wires and serialisation.
    """
    models.check()
    output.check()
    run.check()
    from slipstream.bench import rounds as report

    plan = report.RoundsPlan(prompts.questions(), run.max_new_tokens, run.warmup)
    models.stack().fetch()
    with ExitStack() as stack:
        engines = _engines(stack, run, models)
        with step_bar(len(engines) * (plan.warmup + len(plan.questions))) as advance:
            samples = report.run_rounds(plan, engines, advance=advance)
    figures = report.rounds_figures(samples)
    console = figures_console()
    console.print(report.answers_table(figures))
    console.print()
    console.print(report.parts_table(figures))
    lines = report.remarks(figures)
    if (ms := run.kv_delay_ms) is not None:
        lines.append(report.delay_line(figures[DISTRIBUTED], figures[run.delayed], ms=ms))
    show_lines(lines)
    facts = plan_facts(run, len(plan.questions), "max_new_tokens", "warmup", "kv_delay_ms")
    environment = {**models.facts(), **prompts.facts(), **facts}
    output.write({"environment": environment, "rounds": figures})


def _engines(
    stack: ExitStack, run: ComparisonFlags, models: ModelFlags
) -> dict[str, "RoundsEngine"]:
    """Return the engines under test, until the stack closes."""
    from slipstream.bench.rounds import EMBEDDED, RoundsEngine, check_same_model
    from slipstream.bench.services import LocalServices
    from slipstream.client import Client

    services, address = None, run.router
    if address is None:
        plan = models.stack().plan(port=0)
        has_delay_line = run.kv_delay_ms is not None
        services = stack.enter_context(LocalServices(plan, has_delay_line=has_delay_line))
        address = services.address
    routed = stack.enter_context(Client(str(address), token=load_settings().token))
    embedded = stack.enter_context(Client.embedded(**asdict(models)))
    check_same_model(embedded.model_info(), routed.model_info())
    if services is None:
        return {EMBEDDED: RoundsEngine(embedded), DISTRIBUTED: RoundsEngine(routed)}
    engines = {EMBEDDED: RoundsEngine(embedded, others_cpu_s=services.cpu_s)}
    delays = {DISTRIBUTED: 0.0}
    if run.kv_delay_ms is not None:
        delays[run.delayed] = run.kv_delay_ms / 1000
    for name, delay_s in delays.items():
        prepare = partial(services.set_delay, delay_s)
        engines[name] = RoundsEngine(routed, prepare, time.process_time)
    return engines
