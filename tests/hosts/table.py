"""`python -m hosts.table`: speed of services on hosts of their own, by the time between the hosts,
beside both engines in one process, with a round's parts.

Target and embedded engines have the first core, all others the second. All answer the same
questions in turn.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from slipstream.client import Client
from slipstream.options import option

FIRST, SECOND = 0, 1
app = typer.Typer()


class PinnedCluster(HostCluster):
    """One of each service, without Redis, each on its core."""

    def set_distance(self, rtt_ms: float, *, is_local: bool) -> None:
        """Set the round-trip time between all hosts, and the core of this thread."""
        os.sched_setaffinity(0, {FIRST if is_local else SECOND})
        self.network.say("rate * 10000", f"delay * {rtt_ms / 4}")

    def _entering(self, name: str) -> Callable[[], None]:
        return partial(_enter, super()._entering(name), FIRST if "target" in name else SECOND)


def _enter(enter: Callable[[], None], core: int) -> None:
    enter()
    os.sched_setaffinity(0, {core})


@dataclass(frozen=True, slots=True)
class Distances:
    """The target, and the round-trip times between hosts, in turn for each question."""

    target: str = option("smollm2-135m", "Target whose shipped draft is used.")
    rtt_ms: tuple[float, ...] = option(
        (0.2, 1.0, 5.0, 20.0), "Milliseconds between hosts; repeatable."
    )


def _asks(asks: dict[str, Ask], cluster: PinnedCluster, distances: Distances) -> dict[str, Ask]:
    """Return the functions of all distances out of those of any, which stand where they run."""

    def placed(ask: Ask, rtt_ms: float, *, is_local: bool = False) -> Ask:
        def send(text: str, *, max_tokens: int) -> Any:
            cluster.set_distance(rtt_ms, is_local=is_local)
            return ask(text, max_tokens=max_tokens)

        return send

    found = {EMBEDDED: placed(asks.pop(EMBEDDED), 0, is_local=True)}
    for rtt_ms in distances.rtt_ms:
        found |= {f"{name} {rtt_ms:g} ms": placed(ask, rtt_ms) for name, ask in asks.items()}
    return found


def _measure(
    cluster: PinnedCluster, pair: Pair, plan: RoundsPlan, distances: Distances
) -> dict[str, Any]:
    cluster.set_distance(0, is_local=True)
    with (
        Client.embedded(pair.target, pair.draft, threads=1) as embedded,
        Client(cluster.address, tls=cluster.tls) as apart,
    ):
        asks = _asks(plan.asks(embedded, apart), cluster, distances)
        figures = rounds_figures(run_in_turn(asks, plan, advance=lambda name: None))
    show(answers_table(figures), "", parts_table(figures), *remarks(figures))
    return figures


async def _table(
    pair: Pair, plan: RoundsPlan, distances: Distances, folder: Path
) -> dict[str, Any]:
    sizes = {"router": 1, "target": 1, "draft": 1, "redis": 0}
    async with running(pair, folder, kind=PinnedCluster, sizes=sizes) as cluster:
        return await asyncio.to_thread(_measure, cluster, pair, plan, distances)


@app.command()
@with_flags
def main(
    prompts: QuestionFlags, plan: RoundsPlan, distances: Distances, output: OutputFlags
) -> None:
    """Speed apart, by the round-trip time between hosts, beside the embedded engine's."""
    plan = replace(plan, questions=prompts.questions())
    with tempfile.TemporaryDirectory() as name:
        nursery.begin(Path(name))
        nursery.finish()
        pair = Pair(distances.target, "glide", dtype="auto")
        figures = asyncio.run(_table(pair, plan, distances, Path(name)))
    facts = asdict(distances) | prompts.facts() | plan_facts(plan)
    output.write({"facts": facts, "rounds": figures})


if __name__ == "__main__":
    app()
