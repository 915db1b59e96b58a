"""`slipstream bench scaling`: real services beside their simulation. Only options and printing."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Option

from slipstream.cli.bench_flags import OutputFlags
from slipstream.cli.bench_output import check_writable, command, figures_console, step_bar, write
from slipstream.cli.flags import with_flags
from slipstream.cli.size_flags import RoundFlags, counts
from slipstream.sizing.recording import Devices, Recording

if TYPE_CHECKING:
    from slipstream.bench.timed.scaling import Point, ScalingPlan

_NOTE = (
    "Engines waited out recorded device times instead of computing; processes, queues, steps and"
    " wires were real. Device times must be long beside what {} processors need for the rest."
)


@dataclass(frozen=True, slots=True)
class ScalingFlags:
    """Sizes, and how hard they are driven."""

    drafts: Annotated[str, Option(help="Draft replicas to run with, such as 1-3.")] = "1-3"
    targets: Annotated[str, Option(help="Target replicas to run with.")] = "1,2"
    users: Annotated[int, Option(help="For each target; they ask again when answered.")] = 6
    requests: Annotated[int, Option(help="Of each user.")] = 4

    def plan(self) -> "ScalingPlan":
        """Raises `InvalidRequest` for what makes no sense."""
        from slipstream.bench.timed.scaling import ScalingPlan

        return ScalingPlan(
            counts(self.drafts, "drafts"),
            counts(self.targets, "targets"),
            self.users,
            self.requests,
        )


@with_flags
def scaling(flags: ScalingFlags, rounds: RoundFlags, output: OutputFlags) -> None:
    """Throughput of real services of several sizes, against what the simulator says before.

    Their engines wait for as long as recorded devices take, and answer what was recorded.
    """
    check_writable(output)
    plan, recording = flags.plan(), rounds.rounds()
    with step_bar(2 + len(plan.fleets())) as advance:
        devices, points = asyncio.run(_measure(plan, recording, advance))
    from slipstream.bench.environment import environment

    facts = environment("timed")
    console = figures_console()
    console.print(_table(points))
    console.print(_NOTE.format(facts["num_processors"]), soft_wrap=True)
    console.print(
        f"learnt with one user: a call {devices.wire_s * 1000:.2f} ms, the router"
        f" {devices.router_s * 1000:.2f} ms a round"
    )
    write(output, {"environment": {**facts, "command": command()}, **_values(devices, points)})


async def _measure(
    plan: "ScalingPlan", recording: Recording, advance: Callable[[str], None]
) -> "tuple[Devices, list[Point]]":
    from slipstream.bench.timed.scaling import run_scaling

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.jsonl"
        return await run_scaling(plan, recording, path, advance=advance)


def _values(devices: Devices, points: "Sequence[Point]") -> dict[str, Any]:
    return {"devices": asdict(devices), "points": [point.values() for point in points]}


def _table(points: "Sequence[Point]") -> Table:
    shown = Table(box=None)
    for name in (
        "drafts",
        "targets",
        "users",
        "tokens/s",
        "simulated",
        "error",
        "rounds",
        "simulated rounds",
        "identical",
        "busy processors",
    ):
        shown.add_column(name, justify="right")
    for point in points:
        expected = point.simulated
        shown.add_row(
            str(expected.fleet.drafts),
            str(expected.fleet.targets),
            str(point.users),
            f"{point.tokens_per_s:.1f}",
            f"{expected.tokens_per_s:.1f}",
            f"{point.error:+.1%}",
            str(point.counts.rounds),
            str(expected.counts.rounds),
            f"{point.num_identical}/{point.counts.requests}",
            f"{point.busy_processors:.2f}",
        )
    return shown
