"""`slipstream bench rounds`: embedded against distributed. Knows only options and printing."""

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

from slipstream.bench import rounds_report as report
from slipstream.bench.rounds import (
    EMBEDDED,
    RoundsEngine,
    RoundsPlan,
    check_same_model,
    rounds_figures,
    run_rounds,
)
from slipstream.bench.services import LocalServices
from slipstream.cli.benchmarks.bench_flags import ModelFlags, OutputFlags, QuestionFlags
from slipstream.cli.flags import with_flags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.client import Client
from slipstream.config import load_settings
from slipstream.core.errors import InvalidRequest, UnsupportedCombination
from slipstream.options import items, option


@dataclass(frozen=True, slots=True)
class ServiceFlags:
    """The services that answer, and the distance of the draft."""

    router: str | None = option(None, "HOST:PORT of a router; default: services are started.")
    rtt_ms: str = option(
        "0", "Round-trip times between the draft and the other services, separated by commas."
    )
    overlap: bool = option(False, "Also measure with the option overlap.")
    pin: bool = option(
        False, "The target has a core for itself, with one thread; so has the embedded engine."
    )

    def __post_init__(self) -> None:
        for ms in self.delays_ms():
            if not 0 <= ms <= 1000:
                raise InvalidRequest(f"rtt_ms is {ms:g}, but must be 0 to 1000")
        if self.router is not None and (self.pin or self.delays_ms() != [0.0]):
            raise UnsupportedCombination("--rtt-ms and --pin go with own services, not --router")

    def delays_ms(self) -> list[float]:
        """Return the round-trip times. Raises `InvalidRequest` for what is no number."""
        try:
            return [float(text) for text in items(self.rtt_ms)]
        except ValueError:
            raise InvalidRequest(f"rtt_ms is {self.rtt_ms!r}, but must be numbers") from None


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
    models = replace(models, threads=1) if services.pin else models
    models.stack().fetch()
    with ExitStack() as stack:
        engines = _engines(stack, services, models)
        with step_bar(len(engines) * (plan.warmup + len(plan.questions))) as advance:
            samples = run_rounds(plan, engines, advance=advance)
    figures = rounds_figures(samples)
    console = figures_console()
    console.print(report.answers_table(figures))
    console.print()
    console.print(report.parts_table(figures))
    show_lines(report.remarks(figures))
    facts = {**prompts.facts(), **asdict(services), **asdict(plan.sampling)}
    sizes = {"max_new_tokens": plan.max_new_tokens, "num_prompts": len(plan.questions)}
    output.write({"environment": {**models.facts(), **facts, **sizes}, "rounds": figures})


def _engines(stack: ExitStack, flags: ServiceFlags, models: ModelFlags) -> dict[str, RoundsEngine]:
    """Return the engines under test, until the stack closes."""
    services, address, delays_ms = None, flags.router, flags.delays_ms()
    if address is None:
        plan = models.stack().plan(port=0)
        services = LocalServices(plan, is_apart=delays_ms != [0.0], is_pinned=flags.pin)
        address = stack.enter_context(services).address
    routed = stack.enter_context(Client(address, token=load_settings().token))
    embedded = stack.enter_context(Client.embedded(**asdict(models)))
    check_same_model(embedded.model_info(), routed.model_info())
    others_cpu_s = None if services is None else services.cpu_s
    engines = {EMBEDDED: RoundsEngine(embedded, others_cpu_s=others_cpu_s)}
    for ms in delays_ms:
        prepare = partial(services.set_delay, ms / 2000) if services else lambda: None
        for overlap in (False, True)[: 1 + flags.overlap]:
            name = f"{ms:g} ms{' overlap' if overlap else ''}"
            idle_s = None if services is None else time.process_time
            engines[name] = RoundsEngine(routed, prepare, idle_s, overlap=overlap)
    return engines
