"""Cost of a round, embedded and distributed: both answer the same questions in turn."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from rich.table import Table

from slipstream.bench.figures import (
    ByName,
    fixed,
    number,
    position_text,
    quotient,
    sample_differences,
    sample_figures,
    table,
    table_of,
)
from slipstream.bench.harness import Ask, Sample, Samples, TurnPlan
from slipstream.client import Client
from slipstream.core.errors import check
from slipstream.core.policy.options import Mode, SpeculationOptions
from slipstream.core.request.results import Timings
from slipstream.local.stack import Stack, StackPlan
from slipstream.options import option

EMBEDDED = "embedded"
"""Baseline: both engines in one process."""
PARTS = {
    "draft_engine": "draft engine",
    "kv_wait": "draft waits for keys and values",
    "draft_service": "draft service, rest",
    "draft_wire": "wire to the draft",
    "target_engine": "target engine",
    "target_service": "target service, rest",
    "target_wire": "wire to the target",
    "serialisation": "serialisation",
    "rest": "loop, text and the rest of the router",
}
"""Parts of a round's time, and their labels."""


@dataclass(frozen=True, slots=True)
class RoundsPlan(TurnPlan):
    """Plan of a comparison; forced rounds all draft, so that all parts of a round are seen."""

    mode: str = option("forced", "Speculation: forced, or auto.")

    def __post_init__(self) -> None:
        TurnPlan.__post_init__(self)
        check(self.mode in ("forced", "auto"), "mode", self.mode, "forced or auto")

    def asks(self, embedded: Client, routed: Client) -> dict[str, Ask]:
        """Return the functions that send questions, by name: to the engine in this process, and to
        the services, plain and with the draft."""
        drafting = SpeculationOptions(mode=Mode(self.mode))
        plain = SpeculationOptions(mode=Mode.OFF)
        sampling = self.sampling.params()
        return {
            name: partial(client.generate, sampling=sampling, speculation=speculation)
            for name, client, speculation in (
                (EMBEDDED, embedded, drafting),
                ("plain", routed, plain),
                ("distributed", routed, drafting),
            )
        }


async def with_services(plan: StackPlan, work: Callable[[str], Samples]) -> Samples:
    """Return what `work` does, in a thread, with the address of the router of services on this
    machine; their logs are ignored, as what keeps one from starting is raised."""
    stack = Stack(plan, on_line=lambda name, line: None)
    try:
        return await asyncio.to_thread(work, await stack.start())
    finally:
        await stack.stop(hurry=True)


def rounds_figures(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return, by name: speed, identity, and the parts of a round in milliseconds."""
    return {name: _figures(of, samples[EMBEDDED]) for name, of in samples.items()}


def _figures(of: Sequence[Sample], embedded: Sequence[Sample]) -> dict[str, Any]:
    figures, different = sample_figures(of, embedded), sample_differences(of, embedded)
    rounds = max(figures["rounds"], 1)
    timings = [sample.result.stats.timings for sample in of]
    parts = parts_of(timings)
    prefill_s = sum(times.prefill_s for times in timings)
    # What callers waited for beside prompt and rounds: the way to the router.
    outside_s = (
        sum(sample.wall_s for sample in of) - prefill_s - sum(times.decode_s for times in timings)
    )
    return {
        **figures,
        "requests": len(of),
        "identical": len(of) - len(different),
        "differences": different,
        "prefill_ms": 1000 * prefill_s / len(of),
        "outside_ms": 1000 * outside_s / len(of),
        "round_ms": {part: 1000 * seconds / rounds for part, seconds in parts.items()},
    }


def parts_of(timings: Sequence[Timings]) -> dict[str, float]:
    """Return the seconds of each part; they add up to all of decoding.

    Without services an engine's call is its work. The router keeps one figure for turning values
    into bytes and back on both of its wires; half of it is taken off either.
    """
    names = (field.name for field in fields(Timings))
    of = {name: float(sum(getattr(timing, name) for timing in timings)) for name in names}
    if not of["target_service_s"]:
        of |= dict.fromkeys(("draft_service_s", "draft_engine_s"), of["draft_s"])
        of |= dict.fromkeys(("target_service_s", "target_engine_s"), of["verify_s"])
    half_s = of["serialisation_s"] / 2
    return {
        "draft_engine": of["draft_engine_s"],
        "kv_wait": of["kv_wait_s"],
        "draft_service": of["draft_service_s"] - of["draft_engine_s"] - of["kv_wait_s"],
        "draft_wire": of["draft_s"] - of["draft_service_s"] - half_s,
        "target_engine": of["target_engine_s"],
        "target_service": of["target_service_s"] - of["target_engine_s"],
        "target_wire": of["verify_s"] - of["target_service_s"] - half_s,
        "serialisation": of["serialisation_s"],
        "rest": of["decode_s"] - of["draft_s"] - of["verify_s"],
    }


def answers_table(figures: ByName) -> Table:
    """Return the speed of every engine, one row each."""
    columns = {
        "tokens/s": number("tokens_per_s", 1),
        "ratio": number("ratio", 3, "x"),
        "decode tokens/s": number("decode_tokens_per_s", 1),
        "ratio decode": number("ratio_decode", 3, "x"),
        "tokens per round": lambda of: fixed(quotient(of["tokens"], of["rounds"]), 2),
        "prefill ms": number("prefill_ms", 1),
        "outside ms": number("outside_ms", 1),
        "identical": lambda of: (
            "reference" if of is figures[EMBEDDED] else f"{of['identical']}/{of['requests']}"
        ),
    }
    return table_of([""], columns, (([name], of) for name, of in figures.items()))


def parts_table(figures: ByName) -> Table:
    """Return what a mean round's milliseconds go to, one column for each engine."""
    rows = table("ms per round", *figures)
    for part, label in PARTS.items():
        rows.add_row(label, *(fixed(of["round_ms"][part], 3) for of in figures.values()))
    totals = (sum(of["round_ms"].values()) for of in figures.values())
    rows.add_row("all", *(fixed(total, 3) for total in totals))
    return rows


def remarks(figures: ByName) -> list[str]:
    """Return what went wrong: other tokens, rounds without a draft."""
    lines = []
    for name, of in figures.items():
        if places := of["differences"]:
            where = position_text(places)
            lines.append(f"{name}: other tokens than {EMBEDDED} in question {where}")
        if of["fallbacks"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in of["fallbacks"].items())
            lines.append(f"{name}: rounds without a draft: {reasons}")
    return lines
