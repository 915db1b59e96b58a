"""The page of the first hour on a GPU."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from slipstream.bench.gpu.steps import StepResult
from slipstream.bench.report import fixed, markdown, table


def summary(results: Sequence[StepResult]) -> Table:
    """Return what came of each step."""
    shown = table("step", "seconds", "outcome", "reason", title="Steps")
    for at in results:
        shown.add_row(at.name, fixed(at.seconds, 1), at.outcome, at.reason)
    return shown


def page(results: Sequence[StepResult], facts: Mapping[str, Any]) -> str:
    """Return everything as Markdown: the machine, each step's outcome, figures and output."""
    known = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    parts = ["# Slipstream on this machine", known, markdown(summary(results))]
    for at in results:
        parts += [f"## {at.name}", at.reason or at.outcome.value, *_figures(at.figures)]
        if at.output:
            parts.append(f"```text\n{at.output}\n```")
    return "\n\n".join(parts) + "\n"


def _figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield tables of the figures that the output of a step has not."""
    if "floor_ms" in figures:
        yield _floor_line(figures)
        for name in ("rows", "sessions"):
            shown = table(name, "ms", "of one", title=f"Forward by {name}")
            times = figures[f"{name}_ms"]
            for count, ms in times.items():
                shown.add_row(str(count), fixed(ms, 3), fixed(ms / times["1"], 2, "x"))
            yield markdown(shown)
    if "forwards" in figures:
        worst = max(at["error"] for at in figures["forwards"])
        yield f"Forwards: {_graphs(figures)}"
        yield f"Hidden states differ by up to {worst:.2g} from those without shapes."
        if (chains := figures["chains"]) is not None:
            as_led = f"{chains['as_the_host']} of {chains['proposals']} are as the host leads them"
            yield f"Chains: {_graphs(chains)} {as_led}."
    if "memory" in figures:
        sizes = {**figures["memory"], **figures.get("accounted", {})}
        yield ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in sizes.items())


def _floor_line(of: Mapping[str, Any]) -> str:
    return (
        f"{of['shape']} ({of['dtype']}, {of['engine']}): a plain step of {of['plain_ms']:.2f} ms,"
        f" {of['of_floor']:.0%} of the speed of reading {of['read_bytes'] / 1e9:.2f} GB at"
        f" {of['bandwidth'] / 1e9:.0f} GB/s."
    )


def _graphs(of: Mapping[str, Any]) -> str:
    graphs, waits = of["graphs"], of["waits"]
    same = sum(at["is_equal"] for at in graphs)
    never = "" if waits is None else " None waits for the device."
    return f"{same} of {len(graphs)} graphs have the bits of their bodies.{never}"
