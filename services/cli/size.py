"""`slipstream size`: how many drafts a target needs, by formulas. Knows only options, printing."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Option

from slipstream.cli.bench_output import figures_console
from slipstream.cli.flags import with_flags
from slipstream.cli.size_flags import RoundFlags
from slipstream.core.errors import InvalidRequest
from slipstream.sizing.calculator import KNEE, Estimate, Pools, drafts_needed, estimate
from slipstream.sizing.making import expected_tokens
from slipstream.sizing.recording import Devices, Recording, Work, write_recording

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class SizeFlags:
    """Of which system, and what is told."""

    targets: Annotated[int, Option(help="Target replicas.")] = 1
    sessions: Annotated[int, Option(help="Requests that run at once, on all targets.")] = 8
    drafts: Annotated[int | None, Option(help="Draft replicas; unset, as many as are needed.")] = (
        None
    )
    share: Annotated[
        float, Option(help="What is needed: to reach this share of what drafts can bring.")
    ] = KNEE
    table: Annotated[
        bool, Option("--table", help="Drafts by what they cost and how often they are right.")
    ] = False
    save: Annotated[Path | None, Option(help="Write the rounds to a file.")] = None
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False


@with_flags
def size(rounds: RoundFlags, flags: SizeFlags) -> None:
    """How many drafts so many targets need, and what they bring. Estimated; see `simulate`."""
    recording = rounds.rounds()
    if flags.save is not None:
        write_recording(flags.save, recording)
    values = _table(recording.devices, flags) if flags.table else _sized(recording, flags)
    if flags.json:
        typer.echo(json.dumps(values, indent=2, allow_nan=False))
        return
    console = figures_console()
    console.print(_as_matrix(values) if flags.table else _as_list(values, flags))


def _sized(recording: Recording, flags: SizeFlags) -> dict[str, Any]:
    devices, work = recording.devices, recording.work()
    needed = _needed(devices, work, flags)
    drafts = needed if flags.drafts is None else flags.drafts
    found = estimate(devices, work, Pools(drafts, flags.targets, flags.sessions))
    return {
        **asdict(found),
        "gain": found.gain,
        "drafts_needed": needed,
        "drafts_per_target": needed / flags.targets,
        "work": asdict(work),
        "devices": asdict(devices),
    }


def _needed(devices: Devices, work: Work, flags: SizeFlags) -> int:
    if not work.depth:
        raise InvalidRequest("nothing is drafted in these rounds, so no drafts are needed")
    return drafts_needed(
        devices, work, targets=flags.targets, sessions=flags.sessions, share=flags.share
    )


def _as_list(values: dict[str, Any], flags: SizeFlags) -> Table:
    devices, work, pools = values["devices"], values["work"], values["pools"]
    verify_ms = devices["verify"][0][1] * 1000
    shown = Table(show_header=False, box=None)
    rows = {
        "rounds": f"{work['depth']:.1f} levels, {work['nodes']:.1f} nodes, {work['final']:.2f}"
        " tokens final",
        "a drafted level": f"{devices['level_s'] * 1000:.1f} ms, a plain round {verify_ms:.1f} ms,"
        f" a call {devices['wire_s'] * 1000:.1f} ms",
        "drafts needed": f"{values['drafts_needed']} for {pools['targets']} targets with"
        f" {pools['sessions']} sessions ({flags.share:.0%} of what drafts can bring)",
        "reckoned with": f"{pools['drafts']} drafts",
        "tokens/s": f"{values['tokens_per_s']:.1f}, at most {values['bound_tokens_per_s']:.1f}",
        "without drafts": f"{values['plain_tokens_per_s']:.1f} ({values['gain']:.2f}x)",
        "at work": f"targets {values['target_utilisation']:.0%}, drafts"
        f" {values['draft_utilisation']:.0%} of the time",
        "bottleneck": values["bottleneck"],
        "break-even": f"{values['break_even_final']:.2f} tokens a round, of {values['final']:.2f}",
    }
    for name, text in rows.items():
        shown.add_row(name, text)
    return shown


def _table(devices: Devices, flags: SizeFlags) -> dict[str, Any]:
    """By the cost of a level over that of a plain round, and by the chance of each token."""
    plain_s = devices.curve().seconds(1)
    rows = []
    for ratio in RATIOS:
        for acceptance in ACCEPTANCES:
            times = ratio * plain_s / devices.level_s
            drafted = replace(
                devices,
                level_s=times * devices.level_s,
                level_row_s=times * devices.level_row_s,
            )
            rows.append(_cell(drafted, ratio, acceptance, flags))
    return {"targets": flags.targets, "sessions": flags.sessions, "cells": rows}


def _cell(devices: Devices, ratio: float, acceptance: float, flags: SizeFlags) -> dict[str, Any]:
    """At the depth that is best for this many sessions, with a draft for each."""
    best: tuple[Estimate, Work] | None = None
    for depth in range(1, _DEEPEST + 1):
        work = Work(depth, depth, expected_tokens(acceptance, depth))
        found = estimate(devices, work, Pools(flags.sessions, flags.targets, flags.sessions))
        if best is None or found.tokens_per_s > best[0].tokens_per_s:
            best = found, work
    assert best is not None, "some depth is tried"
    found, work = best
    needed = _needed(devices, work, flags)
    return {
        "cost_ratio": ratio,
        "acceptance": acceptance,
        "depth": int(work.depth),
        "drafts_per_target": needed / flags.targets,
        "gain": found.gain,
    }


def _as_matrix(values: dict[str, Any]) -> Table:
    shown = Table(title="drafts per target (depth, gain)", box=None)
    shown.add_column("level / plain round")
    for acceptance in ACCEPTANCES:
        shown.add_column(f"acceptance {acceptance:g}", justify="right")
    for ratio in RATIOS:
        cells = [cell for cell in values["cells"] if cell["cost_ratio"] == ratio]
        shown.add_row(f"{ratio:g}", *map(_shown, cells))
    return shown


def _shown(cell: dict[str, Any]) -> str:
    if cell["gain"] <= 1:
        return "- (does not pay)"
    return f"{cell['drafts_per_target']:g} ({cell['depth']}, {cell['gain']:.2f}x)"
