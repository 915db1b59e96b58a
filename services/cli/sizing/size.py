"""`slipstream size` and `simulate`: the drafts that targets need, by a formula, by simulation."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from slipstream.cli.flags import with_flags
from slipstream.cli.report import figures_console
from slipstream.cli.sizing.gpu_sizes import GpuFlags, figures, tables
from slipstream.core.errors import InvalidRequest
from slipstream.options import option
from slipstream.sizing.formula import KNEE, Pools, drafts_needed, estimate, mean_round
from slipstream.sizing.recording import DeviceTimes, RandomRounds, Recording, recording_of
from slipstream.sizing.simulator import SimFleet, SimLoad, SimResult, simulate
from slipstream.telemetry.traces import read_spans

_FREE_TOKENS, _MOST_TOKENS = 32, 256
"""Tokens that a round verifies in the time of one, and the most that are known."""
_RANDOM_REQUESTS = 16
_COMPUTED = ("verify", "verify_row", "verify_session", "draft", "draft_row")


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Rounds, from traces or at random, and times that replace the recorded or assumed ones."""

    traces: Path | None = option(
        None, "Rounds from a directory of trace files: see docs/sizing.md."
    )
    acceptance: float | None = option(
        None, "Without traces: acceptance of each drafted token; default: 0.8."
    )
    depth: int | None = option(None, "Tokens drafted in a round; default: 4.")
    output_tokens: int | None = option(None, "Tokens of an answer; default: 128.")
    prompt_tokens: int | None = option(None, "Tokens of a prompt; default: 64.")
    verify_ms: float | None = option(None, "Time of a plain round on the target; default: 40.")
    verify_row_ms: float | None = option(
        None, "Time that each token beyond the first 32 adds to a round; default: 0.2."
    )
    verify_session_ms: float | None = option(
        None, "Time that each further session adds to a step of the target; default: 0."
    )
    draft_ms: float | None = option(None, "Time of a drafted token of one session; default: 4.")
    draft_row_ms: float | None = option(
        None, "Time that each further session adds to a pass of the draft; default: 0.2."
    )
    wire_ms: float | None = option(None, "Time of a call to an engine and back; default: 1.")
    seed: int = option(0, "Seed of random rounds and arrivals.")

    def recording(self, computed: DeviceTimes | None = None) -> Recording:
        """Return rounds and times, the latter where they are not `computed`.

        Raises `InvalidRequest` for options that contradict.
        """
        if computed is not None:
            self._refuse_times()
        given: dict[str, Any] = {
            "acceptance": self.acceptance,
            "depth": self.depth,
            "num_tokens": self.output_tokens,
            "num_prompt_tokens": self.prompt_tokens,
        }
        known = {name: value for name, value in given.items() if value is not None}
        if self.traces is None:
            requests = RandomRounds(**known).requests(_RANDOM_REQUESTS, self.seed)
            times = computed or DeviceTimes(self._verify(), 0.004, 0.0002)
            return Recording(self._times(times), requests)
        if known:
            raise InvalidRequest(
                "rounds are those of the traces: leave out --acceptance, --depth, --output-tokens"
                " and --prompt-tokens"
            )
        found = recording_of(read_spans(self.traces))
        times = found.times
        if self.verify_ms is not None or self.verify_row_ms is not None:
            times = replace(times, verify=self._verify())
        return replace(found, times=self._times(times))

    def _refuse_times(self) -> None:
        given = ("traces", *(f"{name}_ms" for name in _COMPUTED))
        names = [name.replace("_", "-") for name in given if getattr(self, name) is not None]
        if names:
            raise InvalidRequest(
                f"with --device times are those of the GPU: leave out --{', --'.join(names)}"
            )

    def _times(self, known: DeviceTimes) -> DeviceTimes:
        given = {
            "verify_session_s": self.verify_session_ms,
            "level_s": self.draft_ms,
            "level_token_s": self.draft_row_ms,
            "call_s": self.wire_ms,
        }
        changes: dict[str, Any] = {name: ms / 1000 for name, ms in given.items() if ms is not None}
        return replace(known, **changes)

    def _verify(self) -> tuple[tuple[int, float], ...]:
        verify_s = (40 if self.verify_ms is None else self.verify_ms) / 1000
        row_s = (0.2 if self.verify_row_ms is None else self.verify_row_ms) / 1000
        last_s = verify_s + row_s * (_MOST_TOKENS - _FREE_TOKENS)
        return (1, verify_s), (_FREE_TOKENS, verify_s), (_MOST_TOKENS, last_s)


@dataclass(frozen=True, slots=True)
class SizeFlags:
    """Numbers of replicas and sessions."""

    targets: int = option(1, "Target replicas.")
    sessions: int = option(8, "Requests that run at once, on all targets.")
    drafts: int | None = option(None, "Draft replicas; unset, as many as are needed.")
    share: float = option(KNEE, "Share of the gain by a draft for each session that is enough.")
    json: bool = option(False, "Print JSON.")


@with_flags
def size(rounds: RoundFlags, gpu: GpuFlags, flags: SizeFlags) -> None:
    """Estimate how many drafts targets need, and what they bring; see also `simulate`.

    With a device and a model, their memory and times are computed, too: docs/sizing.md.
    """
    on_gpu = gpu.target()
    per_target = -(-flags.sessions // max(flags.targets, 1))
    recording = rounds.recording(None if on_gpu is None else on_gpu.times(per_target))
    times, average = recording.times, mean_round(recording)
    targets, sessions = flags.targets, flags.sessions
    needed = drafts_needed(times, average, targets=targets, sessions=sessions, share=flags.share)
    drafts = needed if flags.drafts is None else flags.drafts
    found = estimate(times, average, Pools(drafts, targets, sessions))
    gain = found.tokens_per_s / found.plain_tokens_per_s
    if flags.json:
        values = {**asdict(found), "gain": gain, "drafts_needed": needed, "round": asdict(average)}
        values |= {"times": asdict(times), "on_gpu": None if on_gpu is None else figures(on_gpu)}
        typer.echo(json.dumps(values, indent=2, allow_nan=False))
        return
    for table in tables(on_gpu) if on_gpu is not None else ():
        figures_console().print(table)
    shown = Table(show_header=False, box=None)
    shown.add_row("drafts needed", f"{needed} for {targets} targets with {sessions} sessions")
    shown.add_row(
        "a round",
        f"{found.draft_s * 1000:.1f} ms in the draft, {found.verify_s * 1000:.1f} ms in the target,"
        f" {found.calls_s * 1000:.1f} ms in calls, with {drafts} drafts",
    )
    shown.add_row(
        "tokens a round", f"{average.final:.2f}; drafting pays above {found.break_even_final:.2f}"
    )
    shown.add_row(
        "tokens/s",
        f"{found.tokens_per_s:.1f}, without drafts {found.plain_tokens_per_s:.1f} ({gain:.2f}x)",
    )
    figures_console().print(shown)


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

    drafts: str = option("0-4", "Draft replicas: one or several numbers, as 0-4 or 1,2.")
    targets: int = option(1, "Target replicas.")
    sessions: int = option(8, "Users who send the next request after each answer.")
    rate: float | None = option(None, "Requests a second that arrive at random, in place of users.")
    requests: int | None = option(
        None, "Requests in all; default: 8 of each user, or 10 seconds of the rate."
    )
    max_rows: int = option(256, "Maximum number of batched tokens of a target's step.")
    json: bool = option(False, "Print JSON.")

    def load(self, seed: int) -> SimLoad:
        """Return the requests. Raises `InvalidRequest` where there are none."""
        usual = 8 * self.sessions if self.rate is None else max(round(10 * self.rate), 1)
        return SimLoad(self.requests or usual, self.sessions, self.rate, seed)


@with_flags
def run_simulation(rounds: RoundFlags, flags: FleetFlags) -> None:
    """Simulate drafts and targets that serve recorded or random rounds; no engine runs.

    The knee is the fewest drafts with 95% of the most tokens a second among those tried.
    """
    recording, load = rounds.recording(), flags.load(rounds.seed)
    runs = [
        simulate(recording, SimFleet(drafts, flags.targets, flags.max_rows), load)
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
