"""`slipstream simulate`: drafts and targets, event by event."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.table import Table
from typer import Option

from slipstream.cli.bench_output import figures_console
from slipstream.cli.flags import with_flags
from slipstream.cli.size import RoundFlags
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.formula import KNEE
from slipstream.sizing.simulator import Fleet, Load, SimResult, simulate

_HEADS = (
    "drafts",
    "tokens/s",
    "first token p50/p95 ms",
    "per token p50/p95 ms",
    "targets busy",
    "wait for drafts",
    "drafts busy",
    "tokens a step",
)


@dataclass(frozen=True, slots=True)
class FleetFlags:
    """Numbers of replicas, and their load."""

    drafts: Annotated[
        str, Option(help="Draft replicas: one or several numbers, as 0-4 or 1,2.")
    ] = "0-4"
    targets: Annotated[int, Option(help="Target replicas.")] = 1
    sessions: Annotated[int, Option(help="Users who send the next request when answered.")] = 8
    rate: Annotated[
        float | None, Option(help="Requests a second that come at random, in place of users.")
    ] = None
    requests: Annotated[
        int | None,
        Option(help="Requests in all; unset, 8 of each user, or 10 seconds of the rate."),
    ] = None
    max_rows: Annotated[int, Option(help="Most batched tokens of a target's step.")] = 256
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False

    def load(self, seed: int) -> Load:
        """Return the requests. Raises `InvalidRequest` where there are none."""
        usual = 8 * self.sessions if self.rate is None else max(round(10 * self.rate), 1)
        return Load(self.requests or usual, self.sessions, self.rate, seed)


@with_flags
def run(rounds: RoundFlags, flags: FleetFlags) -> None:
    """Simulate drafts and targets that serve recorded or random rounds; no engine runs.

    The knee is the fewest drafts with 95% of the most tokens a second among those tried.
    """
    recording, load = rounds.recording(), flags.load(rounds.seed)
    runs = [
        simulate(recording, Fleet(drafts, flags.targets, flags.max_rows), load)
        for drafts in _counts(flags.drafts)
    ]
    enough = KNEE * max(run.tokens_per_s for run in runs)
    knee = min(run.fleet.drafts for run in runs if run.tokens_per_s >= enough)
    if flags.json:
        values = {"knee": knee, "runs": [asdict(run) for run in runs]}
        typer.echo(json.dumps(values, indent=2, allow_nan=False))
        return
    shown = Table(box=None)
    for name in _HEADS:
        shown.add_column(name, justify="right")
    for run in runs:
        shown.add_row(*_cells(run))
    console = figures_console()
    console.print(shown)
    console.print(f"knee: {knee} drafts for {flags.targets} targets")


def _cells(run: SimResult) -> tuple[str, ...]:
    return (
        str(run.fleet.drafts),
        f"{run.tokens_per_s:.1f}",
        f"{run.first_p50_s * 1000:.0f}/{run.first_p95_s * 1000:.0f}",
        f"{run.per_token_p50_s * 1000:.1f}/{run.per_token_p95_s * 1000:.1f}",
        f"{run.target_utilisation:.0%}",
        f"{run.draft_wait:.0%}",
        f"{run.draft_utilisation:.0%}",
        f"{run.tokens_per_step:.1f}",
    )


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,2,4 or 1-8. Raises `InvalidRequest`."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise InvalidRequest(f"drafts is {text!r}, but must be like 1,2,4 or 1-8") from None
    if not found or len(found) > 10_000:
        raise InvalidRequest(f"drafts is {text!r}, which names {len(found)} numbers")
    return tuple(sorted(found))
