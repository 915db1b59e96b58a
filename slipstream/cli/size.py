"""`slipstream size`: the drafts that targets need, by a formula."""

import json
from dataclasses import asdict, dataclass

import typer
from rich.table import Table

from slipstream.cli.flags import with_flags
from slipstream.cli.report import figures_console
from slipstream.core.errors import InvalidRequest
from slipstream.options import option
from slipstream.sizing.formula import KNEE, DeviceTimes, MeanRound, Pools, drafts_needed, estimate

_FREE_TOKENS, _MOST_TOKENS = 32, 256
"""Tokens that a round verifies in the time of one, and the most that are known."""


@dataclass(frozen=True, slots=True)
class RoundFlags:
    """Rounds, and times of engines."""

    acceptance: float = option(0.8, "Acceptance of each drafted token.")
    depth: int = option(4, "Tokens drafted in a round.")
    output_tokens: int = option(128, "Tokens of an answer.")
    prompt_tokens: int = option(64, "Tokens of a prompt.")
    verify_ms: float = option(40.0, "Time of a plain round on the target.")
    verify_row_ms: float = option(0.2, "Time that each token beyond the first 32 adds to a round.")
    verify_session_ms: float = option(
        0.0, "Time that each further session adds to a step of the target."
    )
    draft_ms: float = option(4.0, "Time of a drafted token of one session.")
    draft_row_ms: float = option(0.2, "Time that each further session adds to a pass of the draft.")
    wire_ms: float = option(1.0, "Time of a call to an engine and back.")

    def round(self) -> MeanRound:
        """Return the average round. Raises `InvalidRequest` for one that can't be."""
        if self.output_tokens < 2 or self.prompt_tokens < 1:
            raise InvalidRequest(
                f"output_tokens is {self.output_tokens} and prompt_tokens {self.prompt_tokens}, but"
                " must be 2 and 1, or more"
            )
        share = self.prompt_tokens / self.output_tokens
        return MeanRound.of_chain(self.acceptance, self.depth, share)

    def times(self) -> DeviceTimes:
        """Return the times of engines and calls."""
        verify_s = self.verify_ms / 1000
        last_s = verify_s + self.verify_row_ms / 1000 * (_MOST_TOKENS - _FREE_TOKENS)
        return DeviceTimes(
            ((1, verify_s), (_FREE_TOKENS, verify_s), (_MOST_TOKENS, last_s)),
            self.draft_ms / 1000,
            self.draft_row_ms / 1000,
            self.verify_session_ms / 1000,
            self.wire_ms / 1000,
        )


@dataclass(frozen=True, slots=True)
class SizeFlags:
    """Numbers of replicas and sessions."""

    targets: int = option(1, "Target replicas.")
    sessions: int = option(8, "Requests that run at once, on all targets.")
    drafts: int | None = option(None, "Draft replicas; unset, as many as are needed.")
    share: float = option(KNEE, "Share of the gain by a draft for each session that is enough.")
    json: bool = option(False, "Print JSON.")


@with_flags
def size(rounds: RoundFlags, flags: SizeFlags) -> None:
    """Estimate how many drafts targets need, and what they bring."""
    times, average = rounds.times(), rounds.round()
    targets, sessions = flags.targets, flags.sessions
    needed = drafts_needed(times, average, targets=targets, sessions=sessions, share=flags.share)
    drafts = needed if flags.drafts is None else flags.drafts
    found = estimate(times, average, Pools(drafts, targets, sessions))
    gain = found.tokens_per_s / found.plain_tokens_per_s
    if flags.json:
        values = {**asdict(found), "gain": gain, "drafts_needed": needed, "round": asdict(average)}
        typer.echo(json.dumps(values | {"times": asdict(times)}, indent=2, allow_nan=False))
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
