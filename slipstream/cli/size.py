"""`slipstream size`: the drafts that targets need, by one formula.

All sessions of a target share every step, and all sessions of a draft every pass, so that a round
takes step(S / T) + depth x level(S / D) + two calls, for S sessions, T targets and D drafts.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.report import show
from slipstream.core.errors import InvalidRequest
from slipstream.options import check_bounds, option

KNEE = 0.95
"""Share of the possible throughput: more drafts than reach it hardly pay."""
_FREE_TOKENS = 32
"""Tokens that a step verifies in the time of one."""
Drafts = Annotated[
    int | None, typer.Option(help="Draft replicas; unset, as many as are needed.", min=0)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class SizePlan:
    """Replicas and sessions, the average round, and times of engines."""

    targets: int = option(1, "Target replicas.", least=1)
    sessions: int = option(8, "Requests that run at once, on all targets.", least=1)
    share: float = option(
        KNEE, "Share of the gain by a draft for each session that is enough.", above=0, most=1
    )
    acceptance: float = option(0.8, "Acceptance of each drafted token.", least=0, most=1)
    depth: int = option(4, "Tokens drafted in a round.", least=1, most=127)
    output_tokens: int = option(128, "Tokens of an answer.", least=2)
    prompt_tokens: int = option(64, "Tokens of a prompt.", least=1)
    verify_ms: float = option(40.0, "Time of a plain round on the target.", above=0)
    verify_row_ms: float = option(
        0.2, "Time that each token beyond the first 32 adds to a round.", least=0
    )
    verify_session_ms: float = option(
        0.0, "Time that each further session adds to a step of the target.", least=0
    )
    draft_ms: float = option(4.0, "Time of a drafted token of one session.", above=0)
    draft_row_ms: float = option(
        0.2, "Time that each further session adds to a pass of the draft.", least=0
    )
    wire_ms: float = option(1.0, "Time of a call to an engine and back.", above=0)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not math.isfinite(sum(self.round_ms(1))):
            raise InvalidRequest(f"there is no estimate of {self}")

    @property
    def final(self) -> float:
        """Return the mean of final tokens of a round, each drafted one accepted if all before are
        (Leviathan et al. 2023, eq. 1)."""
        return sum(self.acceptance**node for node in range(self.depth + 1))

    def round_ms(self, drafts: int) -> tuple[float, float, float]:
        """Return the time of a round in a target, in a draft, and in calls; 0 drafts draft
        nothing."""
        size = max(self.sessions / self.targets, 1.0)
        # Prompts are spread over the rounds of their answers, of which there are more without
        # drafts.
        final, nodes = (self.final, self.depth) if drafts else (1.0, 0)
        tokens = round(size * (1 + nodes + final * self.prompt_tokens / self.output_tokens))
        session_ms = min(self.verify_session_ms, self.verify_ms) * (round(size) - 1)
        row_ms = self.verify_row_ms * max(tokens - _FREE_TOKENS, 0)
        verify_ms = self.verify_ms + row_ms + session_ms
        if not drafts:
            return verify_ms, 0.0, self.wire_ms
        level_ms = self.draft_ms + self.draft_row_ms * (max(self.sessions / drafts, 1.0) - 1)
        return verify_ms, self.depth * level_ms, 2 * self.wire_ms

    def tokens_per_s(self, drafts: int) -> float:
        """Return the throughput of all sessions with so many drafts."""
        final = self.final if drafts else 1.0
        return 1000 * self.sessions * final / sum(self.round_ms(drafts))

    @property
    def drafts_needed(self) -> int:
        """Return the fewest drafts that reach the share of the throughput with one per session."""
        most = self.tokens_per_s(self.sessions)
        found = (n for n in range(1, self.sessions) if self.tokens_per_s(n) >= self.share * most)
        return next(found, self.sessions)

    def break_even(self, drafts: int) -> float:
        """Return the final tokens of a round above which drafting pays."""
        return sum(self.round_ms(drafts)) / sum(self.round_ms(0))


@with_flags
def size(plan: SizePlan, *, drafts: Drafts = None, as_json: AsJson = False) -> None:
    """Estimate how many drafts targets need, and what they bring."""
    needed = plan.drafts_needed
    drafts = needed if drafts is None else drafts
    verify_ms, draft_ms, calls_ms = plan.round_ms(drafts)
    speed, plain = plan.tokens_per_s(drafts), plan.tokens_per_s(0)
    values = {
        "drafts_needed": needed,
        "drafts": drafts,
        "draft_s": draft_ms / 1000,
        "verify_s": verify_ms / 1000,
        "calls_s": calls_ms / 1000,
        "final": plan.final,
        "break_even_final": plan.break_even(drafts),
        "tokens_per_s": speed,
        "plain_tokens_per_s": plain,
        "gain": speed / plain,
    }
    if as_json:
        typer.echo(json.dumps(values | {"plan": asdict(plan)}, indent=2, allow_nan=False))
        return
    pays = f"drafting pays above {plan.break_even(drafts):.2f}"
    times = f"{draft_ms:.1f} ms in the draft, {verify_ms:.1f} ms in the target"
    shown = {
        "drafts needed": f"{needed} for {plan.targets} targets with {plan.sessions} sessions",
        "a round": f"{times}, {calls_ms:.1f} ms in calls, with {drafts} drafts",
        "tokens a round": f"{plan.final:.2f}; {pays}",
        "tokens/s": f"{speed:.1f}, without drafts {plain:.1f} ({speed / plain:.2f}x)",
    }
    show(*(f"{name:15} {value}" for name, value in shown.items()))
