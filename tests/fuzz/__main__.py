"""`make fuzz MINUTES=N`: messages of every kind against every service, and sessions as machines.

Ends with 1 where anything was found. `--seed` and `--first` of a report go on with its batches.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from chaos import nursery
from chaos.cluster import Pair, running, tiny_pair
from fuzz import report, sessions
from fuzz.case import CORPUS
from fuzz.fuzzer import Fuzzer
from fuzz.generator import ROLES
from fuzz.victims import Victims
from fuzz.world import world_of

SESSIONS_SHARE = 0.15
"""Part of the time for the state machine of sessions."""
MAX_RSS_GROWTH_MIB = 400
_EXAMPLES, _STEPS = 5, 20


async def fuzz(
    asked: argparse.Namespace, pair: Pair, folder: Path
) -> tuple[report.Tally, list[str]]:
    """Send batches for their part of the time; return the counts, and faults of no single case."""
    nursery.finish()
    async with running(pair, folder, kind=Victims) as victims:
        fuzzer = Fuzzer(victims, asked.seed, asked.keep)
        expected = await victims.answer()
        await fuzzer.begin()
        before = victims.rss_mib()
        until = time.monotonic() + 60 * asked.minutes * (1 - SESSIONS_SHARE)
        await fuzzer.run(until, asked.roles.split(","), asked.first)
        held = await fuzzer.close()
        faults = [f"held at the end: {held}"] if held else []
        if await victims.answer() != expected:
            faults.append("another request's answer has changed")
        for role, after in victims.rss_mib().items():
            if after - before[role] > MAX_RSS_GROWTH_MIB:
                faults.append(f"the {role} has grown from {before[role]} to {after} MiB")
            longest = max((at.cpu_ms for at in victims.stalls[role]), default=0)
            memory = f"RSS {before[role]} -> {after} MiB"
            fuzzer.tally.notes[role] = f"{memory}, longest stall {longest:.1f} ms of CPU"
        return fuzzer.tally, faults


def try_sessions(model: Path, asked: argparse.Namespace) -> tuple[int, list[str]]:
    """Run the state machine of sessions for its part of the time; the calls, and a fault."""
    until, number = time.monotonic() + 60 * asked.minutes * SESSIONS_SHARE, asked.seed
    num_calls = 0
    with world_of(model) as world:
        while time.monotonic() < until:
            try:
                num_calls += sessions.run(
                    world, seed=number, max_examples=_EXAMPLES, stateful_step_count=_STEPS
                )
            except Exception as error:  # the report says so; its notes are the calls
                notes = getattr(error, "__notes__", [])
                return num_calls, [f"sessions, seed {number}: {error!r}", *notes]
            number += 1
    return num_calls, []


def main() -> int:
    parser = report.parser("fuzz", __doc__, CORPUS, minutes=10.0)
    parser.add_argument("--roles", default=",".join(ROLES), help="roles that messages are sent to")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nursery.begin(Path(folder))
        pair = tiny_pair(Path(folder))
        tally, faults = asyncio.run(fuzz(asked, pair, Path(folder)))
        num_calls, failed = try_sessions(Path(pair.target), asked)
    return report.conclude(asked.seed, tally, {"session calls": num_calls}, [*faults, *failed])


if __name__ == "__main__":
    sys.exit(main())
