"""`slipstream size`: the drafts that targets need, by a formula."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from slipstream.cli.flags import with_flags
from slipstream.cli.report import show_lines
from slipstream.sizing.formula import SizePlan

Drafts = Annotated[
    int | None, typer.Option(help="Draft replicas; unset, as many as are needed.", min=0)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    show_lines(f"{name:15} {value}" for name, value in shown.items())
