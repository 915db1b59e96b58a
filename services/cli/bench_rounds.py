"""`slipstream bench rounds`: embedded against distributed. Knows only options and printing."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

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
from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest, UnsupportedCombination

if TYPE_CHECKING:
    from slipstream.bench.rounds import Answerer, RoundsPlan
    from slipstream.bench.services import LocalServices
    from slipstream.client import Client

DISTRIBUTED = "distributed"


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Questions, and the services that answer them."""

    prompts: PromptsOption = None
    limit: LimitOption = None
    max_new_tokens: Annotated[int, Option(help="Most tokens of a reply.")] = 128
    warmup: Annotated[int, Option(help="Short unmeasured replies of each first.")] = 1
    router: Annotated[
        str | None, Option(help="HOST:PORT of a router; default: services are started.")
    ] = None
    kv_delay_ms: Annotated[
        float | None,
        Option(help="Also with so long a wire, each way, between draft and target."),
    ] = None

    def plan(self) -> "RoundsPlan":
        """Raise `InvalidRequest` for what makes no sense."""
        from slipstream.bench.rounds import RoundsPlan

        if self.router is not None and self.kv_delay_ms is not None:
            raise UnsupportedCombination("--kv-delay-ms needs services of our own, not --router")
        if self.kv_delay_ms is not None and not 0 < self.kv_delay_ms <= 1000:
            raise InvalidRequest(
                f"kv_delay_ms is {self.kv_delay_ms:g}, but must be above 0 and at most 1000"
            )
        questions = PromptFlags(self.prompts, self.limit).questions()
        return RoundsPlan(questions, self.max_new_tokens, self.warmup)


@with_flags
def rounds(run: RoundFlags, models: ModelFlags, output: OutputFlags) -> None:
    """What a round costs embedded and distributed, and where the time goes.

    Both answer the same questions in this run, question by question in turn, greedily, drafting in
    every round. ratio is tokens per second over those of the embedded engine, as the caller sees
    them. The router's own part of a round is what engines, wires and serialisation leave.
    """
    models.check()
    check_writable(output)
    plan = run.plan()
    stack_of(models).fetch()
    from slipstream.bench.rounds import run_rounds
    from slipstream.bench.rounds_figures import rounds_figures

    with ExitStack() as stack:
        answerers = _answerers(stack, run, models)
        total = len(answerers) * (plan.warmup + len(plan.questions))
        with step_bar(total) as advance:
            samples = run_rounds(plan, answerers, advance=advance)
    figures = rounds_figures(samples)
    _show(figures, run)
    write(output, {"environment": _environment(run, models, plan), "rounds": figures})


def _answerers(stack: ExitStack, run: RoundFlags, models: ModelFlags) -> dict[str, "Answerer"]:
    """Return the engines under test, until the stack closes."""
    from slipstream.bench.rounds import Answerer, check_same_model
    from slipstream.bench.rounds_figures import EMBEDDED
    from slipstream.client import Client

    services = None if run.router else stack.enter_context(_services(run, models))
    address = run.router if services is None else services.address
    routed = stack.enter_context(Client(str(address), token=load_settings().token))
    embedded = stack.enter_context(_embedded(models))
    check_same_model(embedded.model_info(), routed.model_info())
    if services is None:
        return {EMBEDDED: Answerer(embedded), DISTRIBUTED: Answerer(routed)}
    answerers = {EMBEDDED: Answerer(embedded, others_cpu_s=services.cpu_s)}
    delays = {DISTRIBUTED: 0.0}
    if run.kv_delay_ms is not None:
        delays[_delayed(run.kv_delay_ms)] = run.kv_delay_ms / 1000
    for name, delay_s in delays.items():
        prepare = partial(services.set_delay, delay_s)
        answerers[name] = Answerer(routed, prepare, time.process_time)
    return answerers


def _services(run: RoundFlags, models: ModelFlags) -> "LocalServices":
    from slipstream.bench.services import LocalServices

    return LocalServices(stack_of(models).plan(port=0), has_delay_line=run.kv_delay_ms is not None)


def _embedded(models: ModelFlags) -> "Client":
    from slipstream.client import Client

    return Client.embedded(
        models.target,
        models.draft,
        dtype=models.dtype,
        threads=models.threads,
        device=models.device,
        profile=models.profile,
    )


def _delayed(ms: float) -> str:
    return f"{ms:g} ms away"


def _show(figures: dict[str, Any], run: RoundFlags) -> None:
    from slipstream.bench import rounds_figures as report

    console = figures_console()
    console.print(report.answers_table(figures))
    console.print()
    console.print(report.parts_table(figures))
    lines = report.remarks(figures)
    if (ms := run.kv_delay_ms) is not None:
        lines.append(report.delay_line(figures[DISTRIBUTED], figures[_delayed(ms)], ms=ms))
    show_lines(lines)


def _environment(run: RoundFlags, models: ModelFlags, plan: "RoundsPlan") -> dict[str, Any]:
    return {
        **model_facts(models),
        **prompt_facts(PromptFlags(run.prompts)),
        "num_prompts": len(plan.questions),
        "max_new_tokens": plan.max_new_tokens,
        "warmup": plan.warmup,
        "kv_delay_ms": run.kv_delay_ms,
    }
