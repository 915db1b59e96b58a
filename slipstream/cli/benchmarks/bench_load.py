"""`slipstream bench serve` and `bench peers`: many requests at once. Options and printing only."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.harness import SamplingPlan
from slipstream.bench.load import (
    LoadPlan,
    check_lengths,
    load_table,
    measure_load,
    method_engines,
    remarks,
)
from slipstream.bench.methods import PLAIN, parse_method, parse_request_methods
from slipstream.bench.peers import endpoint_engines, parse_endpoints
from slipstream.cli.benchmarks.bench_flags import (
    OutputFlags,
    QuestionFlags,
    machine_facts,
    weights_facts,
)
from slipstream.cli.engine import open_async_client
from slipstream.cli.flags import with_flags
from slipstream.cli.options import DEFAULT_TARGET, PlaceFlags, read_token
from slipstream.cli.progress import step_bar
from slipstream.cli.report import figures_console, show_lines
from slipstream.options import option


@dataclass(frozen=True, slots=True)
class RequestMethodFlags:
    """Methods that answer."""

    methods: str = option(
        "plain,auto,forced",
        "Separated by commas: plain, auto, forced, or a method as of bench speed.",
    )


@dataclass(frozen=True, slots=True)
class EndpointFlags:
    """Servers with OpenAI's API."""

    endpoint: tuple[str, ...] = option(
        (),
        "NAME=URL of a server, as vllm=http://HOST:PORT/v1; repeatable. Ratios are over the first.",
    )
    endpoint_token_file: Path | None = option(None, "File with the bearer token of the endpoints.")


@with_flags
def serve(
    plan: LoadPlan,
    which: RequestMethodFlags,
    sampling: SamplingPlan,
    prompts: QuestionFlags,
    place: PlaceFlags,
    output: OutputFlags,
) -> None:
    """Speed and identity of many requests at once, of engines in this process or behind --router.

    All methods run in turn with every number of users, --repeats times. Every output is compared
    with that of its prompt alone. For latencies and arrivals, send a load of your own to the HTTP
    front.
    """
    place.check()
    output.check()
    methods, questions = parse_request_methods(which.methods), prompts.questions()
    opened = None if place.is_remote else open_async_client(place)

    async def measured() -> tuple[dict[str, Any], dict[str, Any]]:
        # A router's client begins in its loop.
        async with opened or open_async_client(place) as client:
            info = await client.model_info()
            about = {"model": info.model, "dtype": info.dtype, "numerics": info.numerics}
            await check_lengths(plan, questions, client)
            engines = method_engines(methods, client, sampling.params())
            (plain,) = method_engines([parse_method(PLAIN)], client, sampling.params())
            with step_bar(plan.num_runs(len(engines))) as advance:
                run = measure_load(plan, questions, engines, plain.send, advance=advance)
                return await run, about

    figures, about = asyncio.run(measured())
    facts = {**_environment(place, about), **prompts.facts(), **asdict(plan), **asdict(sampling)}
    _show(figures, "serve", {**facts, "num_prompts": len(questions)}, output)


@with_flags
def peers(
    plan: LoadPlan, which: EndpointFlags, prompts: QuestionFlags, output: OutputFlags
) -> None:
    """Servers with OpenAI's API side by side: Slipstream's HTTP front, llama.cpp, vLLM, SGLang.

    All answer the same chats in turn, greedily, with every number of users, --repeats times. Texts
    are compared with those of the first server, one request at a time.
    """
    output.check()
    urls, questions = parse_endpoints(which.endpoint), prompts.questions()
    token = None if which.endpoint_token_file is None else read_token(which.endpoint_token_file)
    with (
        ThreadPoolExecutor(max(plan.users), "endpoint") as pool,
        step_bar(plan.num_runs(len(urls))) as advance,
    ):
        engines = endpoint_engines(urls, token, pool)
        run = measure_load(plan, questions, engines, engines[0].send, advance=advance)
        figures = asyncio.run(run)
    facts = {**machine_facts("cpu"), "endpoints": urls, **prompts.facts(), **asdict(plan)}
    _show(figures, "peers", {**facts, "num_prompts": len(questions)}, output)


def _show(
    figures: dict[str, Any], name: str, environment: dict[str, Any], output: OutputFlags
) -> None:
    figures_console().print(load_table(figures))
    show_lines(remarks(figures))
    output.write({"environment": environment, name: figures})


def _environment(place: PlaceFlags, about: dict[str, Any]) -> dict[str, Any]:
    """Return facts about this machine; about engines elsewhere only what the router sends."""
    facts = {**machine_facts("cpu"), **about}
    if place.is_remote:
        return facts | {"router": place.router.router, "device": None, "threads": None}
    return facts | {
        "device": machine_facts(place.engine.device or "cpu")["device"],
        "draft": place.engine.draft or "glide",
        **weights_facts(place.engine.target or DEFAULT_TARGET),
    }
