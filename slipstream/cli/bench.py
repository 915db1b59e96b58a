"""`slipstream bench`: speed, costs and identity of engines. Knows only options and printing."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.bench import load
from slipstream.bench import rounds as rounds_of
from slipstream.bench import speed as speeds
from slipstream.bench.cost import CostPlan, cost_table, measure_cost
from slipstream.bench.harness import Samples, SamplingPlan, run_in_turn
from slipstream.bench.methods import (
    GRAMMAR,
    PLAIN,
    Method,
    parse_method,
    parse_methods,
    parse_request_methods,
    with_plain,
)
from slipstream.bench.peers import endpoint_engine, parse_endpoints
from slipstream.cli.bench_flags import (
    ModelFlags,
    OutputFlags,
    QuestionFlags,
    machine_facts,
    plan_facts,
    weights_facts,
)
from slipstream.cli.engine import open_client
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, PlaceFlags
from slipstream.cli.progress import step_bar
from slipstream.cli.report import show
from slipstream.client import AsyncClient, Client
from slipstream.config import load_settings
from slipstream.core.errors import FAILED
from slipstream.files import read_token
from slipstream.models.glide.load import shipped_folder

app = typer.Typer(help="Measure speed and identity.", no_args_is_help=True)


@app.command()
@with_flags
def rounds(
    prompts: QuestionFlags, plan: rounds_of.RoundsPlan, models: ModelFlags, output: OutputFlags
) -> None:
    """Cost of a round embedded and distributed, and where the time goes.

    All answer the same questions in this run, in turn, the services without a draft, too. ratio is
    tokens per second over those of the embedded engine, as the caller sees them. The router's part
    of a round is the rest beside engines, wires and serialisation.
    """
    models.check()
    plan = replace(plan, questions=prompts.questions())
    models.stack().fetch()
    stack = models.stack().plan()
    samples = asyncio.run(rounds_of.with_services(stack, partial(_measured, plan, models)))
    figures = rounds_of.rounds_figures(samples)
    tables = rounds_of.answers_table(figures), "", rounds_of.parts_table(figures)
    show(*tables, *rounds_of.remarks(figures))
    facts = models.facts() | prompts.facts() | plan_facts(plan)
    output.write({"environment": facts, "rounds": figures})


def _measured(plan: rounds_of.RoundsPlan, models: ModelFlags, address: str) -> Samples:
    with (
        Client(address, token=load_settings().token) as routed,
        Client.embedded(**models.given()) as embedded,
    ):
        asks = plan.asks(embedded, routed)
        with step_bar(len(asks) * (plan.warmup + len(plan.questions))) as advance:
            return run_in_turn(asks, plan, advance=advance)


Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=URL",
        help="A server, as vllm=http://HOST:PORT/v1; repeatable. Ratios are over the first.",
    ),
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token of the servers.")]


@app.command()
@with_flags
def peers(
    plan: load.LoadPlan,
    prompts: QuestionFlags,
    output: OutputFlags,
    *,
    endpoint: Endpoints = None,
    endpoint_token_file: TokenFile = None,
) -> None:
    """Servers with OpenAI's API side by side: Slipstream's HTTP front, llama.cpp, vLLM, SGLang.

    All answer the same chats in turn, greedily, with every number of users, --repeats times. Texts
    are compared with those of the first server, one request at a time.
    """
    urls, questions = parse_endpoints(endpoint or ()), prompts.questions()
    token = None if endpoint_token_file is None else read_token(endpoint_token_file)
    with (
        ThreadPoolExecutor(max(plan.users), "endpoint") as pool,
        step_bar(len(plan.users) * len(urls) * plan.repeats) as advance,
    ):
        engines = [endpoint_engine(name, url, token, pool) for name, url in urls.items()]
        run = load.measure_load(plan, questions, engines, engines[0].send, advance=advance)
        figures = asyncio.run(run)
    facts = {**machine_facts("cpu"), "endpoints": urls, **prompts.facts(), **asdict(plan)}
    _show(figures, "peers", {**facts, "num_prompts": len(questions)}, output)


RequestMethods = Annotated[
    str, typer.Option(help="By commas: plain, auto, forced, or a method as of bench speed.")
]


@app.command()
@with_flags
def serve(
    plan: load.LoadPlan,
    sampling: SamplingPlan,
    prompts: QuestionFlags,
    place: PlaceFlags,
    output: OutputFlags,
    *,
    methods: RequestMethods = "plain,auto,forced",
) -> None:
    """Speed and identity of many requests at once, of engines in this process or behind --router.

    All methods run in turn with every number of users, --repeats times. Every output is compared
    with that of its prompt alone. For latencies and arrivals, send a load of your own to the HTTP
    front.
    """
    place.check()
    chosen, questions = parse_request_methods(methods), prompts.questions()
    opened = None if place.is_remote else open_client(AsyncClient, place)

    async def measured() -> tuple[dict[str, Any], dict[str, Any]]:
        async with opened or open_client(AsyncClient, place) as client:  # a router's, in its loop
            info = await client.model_info()
            about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
            plain, *engines = (
                load.method_engine(method, client, sampling.params())
                for method in (parse_method(PLAIN), *chosen)
            )
            with step_bar(len(plan.users) * len(engines) * plan.repeats) as advance:
                run = load.measure_load(plan, questions, engines, plain.send, advance=advance)
                return await run, about

    figures, about = asyncio.run(measured())
    facts = {**_environment(place, about), **prompts.facts(), **asdict(plan), **asdict(sampling)}
    _show(figures, "serve", {**facts, "num_prompts": len(questions)}, output)


def _environment(place: PlaceFlags, about: dict[str, Any]) -> dict[str, Any]:
    """Return facts about this machine; about engines elsewhere only what the router sends."""
    facts = machine_facts(place.engine.device or "cpu") | about
    if place.is_remote:
        return facts | {"router": place.router.router, "device": None, "threads": None}
    drafter = {"draft": place.engine.draft or "glide"}
    return facts | drafter | weights_facts(place.engine.target or DEFAULT_TARGET)


def _show(
    figures: dict[str, Any], name: str, environment: dict[str, Any], output: OutputFlags
) -> None:
    show(load.load_table(figures), *load.remarks(figures))
    output.write({"environment": environment, name: figures})


Methods = Annotated[str, typer.Option(help=f"Methods, separated by commas; a method is {GRAMMAR}.")]


@app.command()
@with_flags
def speed(
    prompts: QuestionFlags,
    plan: speeds.SpeedPlan,
    models: ModelFlags,
    output: OutputFlags,
    *,
    methods: Methods = "plain,ngram,glide,glide+cape+svip,best",
) -> None:
    """Speed of methods on the same prompts, against plain decoding.

    All methods run in this process, prompt by prompt in turn. ratio is tokens per second over
    those of `plain`, prefill included; identical counts outputs with the tokens of plain
    decoding. Exits with 1 where these are promised and others came.
    """
    plan = replace(plan, methods=with_plain(parse_methods(methods)), questions=prompts.questions())
    models.check()
    engines = models.engines(*_draft_models(plan.methods))
    num_replies = len(plan.methods) * (plan.repeats * len(plan.questions) + plan.warmup)
    with step_bar(num_replies) as advance:
        samples = speeds.run_speed(plan, engines, advance=advance)
    is_invariant = engines.engine.model.numerics == "invariant"
    figures = speeds.compare(plan, samples, is_invariant=is_invariant)
    tables = speeds.speed_table(figures), "", speeds.category_table(figures)
    show(*tables, *speeds.difference_lines(figures))
    facts = models.facts(*_draft_models(plan.methods)) | prompts.facts() | plan_facts(plan)
    facts |= {"draft_sha256": engines.draft_digests}
    output.write({"environment": facts, "methods": figures})
    if any(speeds.is_broken(parts["overall"]) for parts in figures.values()):
        raise typer.Exit(FAILED)


@app.command()
@with_flags
def cost(plan: CostPlan, models: ModelFlags, output: OutputFlags) -> None:
    """Cost of verifying tokens, and of a draft step, in milliseconds.

    Every forward is timed in turn with the others; medians are printed. The tokens of a
    verification are one pending token and a chain of drafted ones, head included. With --shape
    also one token of each of several sessions, and rounds of as many requests at once: plain ones,
    chains, CaPE, and those that requests get by default.
    """
    models.check()
    if plan.shape is None:
        measured, facts = _target_cost(plan, models), models.facts()
        show(cost_table(measured))
    else:
        from slipstream.bench import shapes

        total = shapes.NUM_REPEATS * len(shapes.ROUND_METHODS) * len(plan.counts("sessions"))
        with step_bar(total) as advance:
            measured = shapes.measure_shape(plan, plan.shape, models.options(), advance=advance)
        facts, rounds = {**machine_facts(models.device), "shape": plan.shape}, measured["rounds"]
        table = shapes.rounds_table(rounds, measured["floors_ms"])
        captures = f"captures: {measured['captures']}"
        show(cost_table(measured), table, *load.remarks(rounds), captures)
    if floor := measured["floors_ms"].get("1"):
        plain, share = measured["forward_ms"]["1"], measured["of_floor"]
        show(f"a plain step takes {plain:.2f} ms, reading {floor:.2f} ({share:.0%})")
    output.write({"environment": {**facts, "rounds": plan.rounds}, "cost": measured})


def _target_cost(plan: CostPlan, models: ModelFlags) -> dict[str, Any]:
    engines = models.engines()
    engine, questions = engines.engine, QuestionFlags().questions()
    text = "\n".join(turn for question in questions for turn in question.turns)
    has_draft = models.draft != "glide" or shipped_folder(engine.model_id).is_dir()
    draft = engines.draft_model() if has_draft else None
    return measure_cost(
        plan, engine.model, engine.text.encode(text, add_special_tokens=False), draft
    )


def _draft_models(methods: Sequence[Method]) -> Iterator[str]:
    return (method.model for method in methods if method.model is not None)
