"""`slipstream simulate`: drafts and targets, event by event. Knows only options and printing."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Option

from slipstream.cli.bench_output import figures_console
from slipstream.cli.flags import with_flags
from slipstream.cli.size_flags import RoundFlags, counts
from slipstream.sizing.calculator import KNEE
from slipstream.sizing.simulator import MAX_ROWS, Crowd, Fleet, Simulated, simulate


@dataclass(frozen=True, slots=True)
class FleetFlags:
    """How many of what, and who asks."""

    drafts: Annotated[
        str, Option(help="Draft replicas: one or several numbers, as 0-4 or 1,2.")
    ] = "0-4"
    targets: Annotated[int, Option(help="Target replicas.")] = 1
    sessions: Annotated[int, Option(help="Users, who ask again when they are answered.")] = 8
    rate: Annotated[
        float | None, Option(help="Requests a second that come whoever waits, in place of users.")
    ] = None
    requests: Annotated[
        int | None, Option(help="In all; unset, 8 of each user, or 10 seconds of the rate.")
    ] = None
    max_rows: Annotated[int, Option(help="Of a target's step.")] = MAX_ROWS
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False

    def crowd(self, seed: int) -> Crowd:
        """Raises `InvalidRequest` for nobody."""
        usual = 8 * self.sessions if self.rate is None else max(round(10 * self.rate), 1)
        return Crowd(self.requests or usual, self.sessions, self.rate, seed)


@with_flags
def run(rounds: RoundFlags, flags: FleetFlags) -> None:
    """Play recorded or imagined rounds over so many drafts and targets; no engine runs.

    The knee is the fewest drafts with 95% of the most tokens a second among those tried.
    """
    recording, crowd = rounds.rounds(), flags.crowd(rounds.seed)
    runs = [
        simulate(recording, Fleet(drafts, flags.targets, flags.max_rows), crowd)
        for drafts in counts(flags.drafts, "drafts")
    ]
    if flags.json:
        values = {"knee": knee(runs), "runs": [asdict(run) for run in runs]}
        typer.echo(json.dumps(values, indent=2, allow_nan=False))
        return
    console = figures_console()
    console.print(_table(runs))
    console.print(f"knee: {knee(runs)} drafts for {flags.targets} targets")


def knee(runs: Sequence[Simulated]) -> int:
    """The fewest drafts that are nearly as good as any."""
    enough = KNEE * max(run.tokens_per_s for run in runs)
    return min(run.fleet.drafts for run in runs if run.tokens_per_s >= enough)


def _table(runs: Sequence[Simulated]) -> Table:
    shown = Table(box=None)
    for name in (
        "drafts",
        "targets",
        "tokens/s",
        "first token p50/p95 ms",
        "per token p50/p95 ms",
        "targets at work",
        "wait for drafts",
        "drafts at work",
        "rows a step",
    ):
        shown.add_column(name, justify="right")
    for run in runs:
        shown.add_row(*_cells(run))
    return shown


def _cells(run: Simulated) -> list[Any]:
    return [
        str(run.fleet.drafts),
        str(run.fleet.targets),
        f"{run.tokens_per_s:.1f}",
        f"{run.first_p50_s * 1000:.0f}/{run.first_p95_s * 1000:.0f}",
        f"{run.per_token_p50_s * 1000:.1f}/{run.per_token_p95_s * 1000:.1f}",
        f"{run.target_utilisation:.0%}",
        f"{run.draft_wait:.0%}",
        f"{run.draft_utilisation:.0%}",
        f"{run.rows_per_step:.1f}",
    ]
