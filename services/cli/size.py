"""`slipstream size`: the number of drafts that targets need, by a formula."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Option

from slipstream.cli.bench_output import figures_console
from slipstream.cli.flags import with_flags
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.formula import KNEE, Pools, drafts_needed, estimate, mean_round
from slipstream.sizing.recording import DeviceTimes, RandomRounds, Recording
from slipstream.sizing.traces import recording_of
from slipstream.telemetry.traces import read_spans

_FREE_ROWS, _MOST_ROWS = 32, 256
_RANDOM_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Rounds, from traces or at random, and times that replace the recorded or assumed ones."""

    traces: Annotated[
        Path | None, Option(help="Rounds from a directory of trace files: see docs/sizing.md.")
    ] = None
    acceptance: Annotated[
        float | None, Option(help="Without traces: probability of each drafted token; 0.8.")
    ] = None
    depth: Annotated[int | None, Option(help="Tokens drafted in a round; 4.")] = None
    output_tokens: Annotated[int | None, Option(help="Tokens of an answer; 128.")] = None
    prompt_tokens: Annotated[int | None, Option(help="Tokens of a prompt; 64.")] = None
    verify_ms: Annotated[float | None, Option(help="A plain round on the target; 40.")] = None
    verify_row_ms: Annotated[
        float | None, Option(help="A token to verify beyond the first 32; 0.2.")
    ] = None
    verify_session_ms: Annotated[
        float | None, Option(help="A session more in a step of the target; 0.")
    ] = None
    draft_ms: Annotated[float | None, Option(help="A drafted token of one session; 4.")] = None
    draft_row_ms: Annotated[
        float | None, Option(help="A session more in a pass of the draft; 0.2.")
    ] = None
    wire_ms: Annotated[float | None, Option(help="A call to an engine and back; 1.")] = None
    seed: Annotated[int, Option(help="Seed of random rounds and arrivals.")] = 0

    def recording(self) -> Recording:
        """Return rounds and times. Raises `InvalidRequest` for options that contradict."""
        given: dict[str, Any] = {
            "acceptance": self.acceptance,
            "depth": self.depth,
            "num_tokens": self.output_tokens,
            "num_prompt_tokens": self.prompt_tokens,
        }
        known = {name: value for name, value in given.items() if value is not None}
        if self.traces is None:
            requests = RandomRounds(**known).requests(_RANDOM_REQUESTS, self.seed)
            return Recording(self._times(DeviceTimes(self._verify(), 0.004, 0.0002)), requests)
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
        last_s = verify_s + row_s * (_MOST_ROWS - _FREE_ROWS)
        return (1, verify_s), (_FREE_ROWS, verify_s), (_MOST_ROWS, last_s)


@dataclass(frozen=True, slots=True)
class SizeFlags:
    """Numbers of replicas and sessions."""

    targets: Annotated[int, Option(help="Target replicas.")] = 1
    sessions: Annotated[int, Option(help="Requests that run at once, on all targets.")] = 8
    drafts: Annotated[int | None, Option(help="Draft replicas; unset, as many as are needed.")] = (
        None
    )
    share: Annotated[
        float, Option(help="Share of what a draft per session brings that is enough.")
    ] = KNEE
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False


@with_flags
def size(rounds: RoundFlags, flags: SizeFlags) -> None:
    """Estimate how many drafts targets need, and what they bring; see also `simulate`."""
    recording = rounds.recording()
    times, average = recording.times, mean_round(recording)
    targets, sessions = flags.targets, flags.sessions
    needed = drafts_needed(times, average, targets=targets, sessions=sessions, share=flags.share)
    drafts = needed if flags.drafts is None else flags.drafts
    found = estimate(times, average, Pools(drafts, targets, sessions))
    gain = found.tokens_per_s / found.plain_tokens_per_s
    if flags.json:
        values = {**asdict(found), "gain": gain, "drafts_needed": needed, "round": asdict(average)}
        typer.echo(json.dumps({**values, "times": asdict(times)}, indent=2, allow_nan=False))
        return
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
