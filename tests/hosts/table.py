"""`python -m hosts.table`: speed of services on hosts of their own, by the time between the hosts,
beside both engines in one process, with a round's parts.

Target and embedded engines have the first core, all others the second. All answer the same
questions in turn.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from chaos import nursery
from chaos.cluster import Pair, running
from hosts.cluster import HostCluster
from slipstream.bench.harness import Ask, run_in_turn
from slipstream.bench.rounds import (
    EMBEDDED,
    RoundsPlan,
    answers_table,
    parts_table,
    remarks,
    rounds_figures,
)
from slipstream.cli.bench_flags import OutputFlags, QuestionFlags, plan_facts
from slipstream.cli.flags import with_flags
from slipstream.cli.report import show
from slipstream.client import Client, Mode, SpeculationOptions
from slipstream.core.request.results import Result

FIRST, SECOND = 0, 1
ByWire = dict[str, Any]
app = typer.Typer()


class PinnedCluster(HostCluster):
    """One of each service, without Redis, each on its core."""

    def _entering(self, name: str) -> Callable[[], None]:
        return partial(_enter, super()._entering(name), FIRST if "target" in name else SECOND)


def _enter(enter: Callable[[], None], core: int) -> None:
    enter()
    os.sched_setaffinity(0, {core})


def _on(core: int, ask: Ask, prompt: str, **options: Any) -> Result:
    """Ask from a core: what computes in the caller's thread computes there."""
    os.sched_setaffinity(0, {core})
    return ask(prompt, **options)


def _measure(
    cluster: PinnedCluster, pair: Pair, *, plan: RoundsPlan, round_trips: list[float]
) -> ByWire:
    found = {}
    os.sched_setaffinity(0, {FIRST})
    with (
        Client.embedded(pair.target, pair.draft, threads=1) as embedded,
        Client(cluster.address, tls=cluster.tls) as apart,
    ):
        plain = SpeculationOptions(mode=Mode.OFF)
        plainly = partial(apart.generate, sampling=plan.sampling.params(), speculation=plain)
        asks: dict[str, Ask] = {
            EMBEDDED: partial(_on, FIRST, plan.ask(embedded)),
            "plain": partial(_on, SECOND, plainly),
            "apart": partial(_on, SECOND, plan.ask(apart)),
            "overlap": partial(_on, SECOND, plan.ask(apart, overlap=True)),
        }
        for ms in round_trips:
            cluster.network.say("rate * 10000", f"delay * {ms / 4}")
            samples = run_in_turn(asks, plan, advance=lambda name: None)
            found[f"{ms:g} ms"] = figures = rounds_figures(samples)
            show(f"round trip {ms:g} ms", answers_table(figures), parts_table(figures))
            show(*remarks(figures), "")
    return found


async def _table(measure: Callable[[PinnedCluster, Pair], ByWire], folder: Path) -> ByWire:
    pair = Pair("smollm2-135m", "glide", dtype="auto")
    sizes = {"router": 1, "target": 1, "draft": 1, "redis": 0}
    async with running(pair, folder, kind=PinnedCluster, sizes=sizes) as cluster:
        return await asyncio.to_thread(measure, cluster, pair)


@app.command()
@with_flags
def main(
    prompts: QuestionFlags,
    plan: RoundsPlan,
    output: OutputFlags,
    *,
    round_trip_ms: Annotated[list[float], typer.Option()] = [0.2, 1, 5, 20],  # noqa: B006
) -> None:
    """Speed apart, plain, speculating and with overlap, beside the embedded engine's."""
    plan = replace(plan, questions=prompts.questions())
    with tempfile.TemporaryDirectory() as name:
        nursery.begin(Path(name))
        nursery.finish()
        measure = partial(_measure, plan=plan, round_trips=round_trip_ms)
        found = asyncio.run(_table(measure, Path(name)))
    output.write({"facts": prompts.facts() | plan_facts(plan), "round_trips": found})


if __name__ == "__main__":
    app()
