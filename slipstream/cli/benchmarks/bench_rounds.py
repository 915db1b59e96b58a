"""`slipstream bench rounds`: embedded against distributed. Knows only options and printing."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from slipstream.bench.harness import Ask, run_in_turn
from slipstream.bench.rounds import (
    EMBEDDED,
    RoundsPlan,
    answers_table,
    check_same_model,
    parts_table,
    remarks,
    rounds_figures,
)
from slipstream.bench.services import LocalServices
from slipstream.cli.benchmarks.bench_flags import ModelFlags, OutputFlags, QuestionFlags
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.client import Client
from slipstream.config import load_settings
from slipstream.options import option


@dataclass(frozen=True, slots=True)
class ServiceFlags:
    """The services that answer."""

    router: str | None = option(None, "HOST:PORT of a router; default: services are started.")
    overlap: bool = option(False, "Also measure with the option overlap.")


@with_flags
def rounds(
    prompts: QuestionFlags,
    plan: RoundsPlan,
    services: ServiceFlags,
    models: ModelFlags,
    output: OutputFlags,
) -> None:
    """Cost of a round embedded and distributed, and where the time goes.

    Both answer the same questions in this run, question by question in turn, drafting in every
    round. ratio is tokens per second over those of the embedded engine, as the caller sees
    them. The router's own part of a round is the rest beside engines, wires and serialisation.
    """
    models.check()
    output.check()
    plan = replace(plan, questions=prompts.questions())
    models.stack().fetch()
    with ExitStack() as stack:
        asks = _asks(stack, plan, services, models)
        with step_bar(len(asks) * (plan.warmup + len(plan.questions))) as advance:
            samples = run_in_turn(
                asks,
                plan.questions,
                max_new_tokens=plan.max_new_tokens,
                warmup=plan.warmup,
                advance=advance,
            )
    figures = rounds_figures(samples)
    console = figures_console()
    console.print(answers_table(figures))
    console.print()
    console.print(parts_table(figures))
    show_lines(remarks(figures))
    facts = {**prompts.facts(), **asdict(services), **asdict(plan.sampling)}
    sizes = {"max_new_tokens": plan.max_new_tokens, "num_prompts": len(plan.questions)}
    output.write({"environment": {**models.facts(), **facts, **sizes}, "rounds": figures})


def _asks(
    stack: ExitStack, plan: RoundsPlan, flags: ServiceFlags, models: ModelFlags
) -> dict[str, Ask]:
    """Return the engines under test, until the stack closes."""
    address = flags.router
    if address is None:
        services = LocalServices(models.stack().plan(port=0))
        address = stack.enter_context(services).address
    routed = stack.enter_context(Client(address, token=load_settings().token))
    embedded = stack.enter_context(Client.embedded(**asdict(models)))
    check_same_model(embedded.model_info(), routed.model_info())
    asks = {EMBEDDED: plan.ask(embedded), "distributed": plan.ask(routed)}
    if flags.overlap:
        asks["overlap"] = plan.ask(routed, overlap=True)
    return asks
