"""`make fuzz MINUTES=N`: messages of every kind against every service, and sessions as machines.

Ends with 1 where anything was found. `--seed` and `--first` of a report go on with its batches.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos import nursery
from fuzz import report, sessions
from fuzz.case import CORPUS
from fuzz.fuzzer import MAX_RSS_GROWTH_MIB, Fuzzer
from fuzz.generator import ROLES
from fuzz.victims import running
from fuzz.world import world_of
from support.services import fleet

SESSIONS_SHARE = 0.15
"""Part of the time for the state machine of sessions."""
_EXAMPLES, _STEPS = 5, 20


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--first", type=int, default=0, help="number of the first batch")
    parser.add_argument("--roles", default=",".join(ROLES), help="of what is sent to")
    parser.add_argument("--report", type=Path, help="a file for the report as JSON")
    parser.add_argument("--keep", type=Path, default=CORPUS, help="a folder for findings")
    return parser.parse_args()


async def fuzz(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run it all; the report's values."""
    model = folder / "tiny"
    nursery.finish()
    async with running(model, folder) as victims:
        fuzzer = Fuzzer(victims, asked.seed, asked.keep)
        expected = await victims.answer()
        await fuzzer.begin()
        before, began = victims.rss_mib(), time.monotonic()
        await fuzzer.run(
            began + 60 * asked.minutes * (1 - SESSIONS_SHARE), asked.roles.split(","), asked.first
        )
        seconds = time.monotonic() - began
        held = await fuzzer.close()
        after = victims.rss_mib()
        is_same = await victims.answer() == expected
        rss = {role: [before[role], after[role]] for role in before}
        about = {"seed": asked.seed, "seconds": seconds, "held": held, "same_answer": is_same}
        return report.values(fuzzer.tally, victims.stalls, rss, **about)


def try_sessions(model: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Run the state machine of sessions for its part of the time; what came of it."""
    until, number = time.monotonic() + 60 * asked.minutes * SESSIONS_SHARE, asked.seed
    told: dict[str, Any] = {"calls": 0, "failed": None}
    with world_of(model) as world:
        while time.monotonic() < until and told["failed"] is None:
            try:
                told["calls"] += sessions.run(
                    world, seed=number, max_examples=_EXAMPLES, stateful_step_count=_STEPS
                )
            except Exception as error:  # the report says so; its notes are the calls
                notes = getattr(error, "__notes__", [])
                told["failed"] = "\n".join([f"seed {number}: {error!r}", *notes])
            number += 1
    return told


def is_clean(told: dict[str, Any]) -> bool:
    """Whether nothing was found, nothing is held, and memory is bounded."""
    grown = [after - before for before, after in (at["rss_mib"] for at in told["roles"].values())]
    is_bounded = max(grown) <= MAX_RSS_GROWTH_MIB
    is_exact = told["same_answer"] and told["sessions"]["failed"] is None
    return not told["findings"] and not told["held"] and is_exact and is_bounded


def main() -> int:
    """Fuzz, and print the report."""
    asked = options()
    sys.stdout.write(f"seed {asked.seed}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        nursery.begin(Path(folder))
        model = fleet.save_models(Path(folder))
        told = asyncio.run(fuzz(asked, Path(folder)))
        told["sessions"] = try_sessions(model, asked)
    sys.stdout.write("\n".join(report.lines(told)) + "\n")
    if asked.report is not None:
        asked.report.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if is_clean(told) else 1


if __name__ == "__main__":
    sys.exit(main())
