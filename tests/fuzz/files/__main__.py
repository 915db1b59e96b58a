"""`make fuzz-files CASES=N`: broken and hostile files of every kind, each loaded or refused.

Ends with 1 where anything was found. `--seed` and `--first` of a report go on with its cases.
"""

import argparse
import asyncio
import json
import math
import secrets
import sys
import time
from itertools import product
from pathlib import Path

from fuzz.files.kinds import MODULES, kinds_of
from fuzz.files.runner import KEPT, MEMORY, Limits, Runner

_CHUNK = 200


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser("fuzz.files", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases, all kinds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="longest time for them")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--first", type=int, default=0, help="number of each kind's first case")
    parser.add_argument("--kinds", help="names of kinds, with commas between; all by default")
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes that a file may take")
    parser.add_argument("--report", type=Path, help="a file for the report as JSON")
    parser.add_argument("--keep", type=Path, default=KEPT, help="a folder for findings")
    return parser.parse_args()


async def fuzz(asked: argparse.Namespace) -> Runner:
    """Run all cases, in turns of the kinds."""
    names = asked.kinds.split(",") if asked.kinds else sorted(kinds_of(MODULES))
    end = asked.first + -(-asked.cases // len(names))
    until = time.monotonic() + 60 * asked.minutes
    runner = Runner(limits=Limits(memory=asked.memory), folder=asked.keep)
    try:
        for first, name in product(range(asked.first, end, _CHUNK), names):
            if time.monotonic() > until:
                break
            await runner.run(name, asked.seed, first, min(first + _CHUNK, end))
        await runner.minimise()
    finally:
        runner.close()
    return runner


def main() -> int:
    """Fuzz, and print the report."""
    asked = options()
    sys.stdout.write(f"seed {asked.seed}\n")
    sys.stdout.flush()
    began = time.monotonic()
    tally = asyncio.run(fuzz(asked)).tally
    seconds = time.monotonic() - began
    values = {"seed": asked.seed, "seconds": seconds, **tally.values()}
    sys.stdout.write("\n".join(tally.lines()) + "\n")
    sys.stdout.write(
        f"seed {asked.seed}: {values['cases']:,} cases in {seconds:.0f} s,"
        f" {len(tally.findings)} findings\n"
    )
    if asked.report is not None:
        asked.report.write_text(json.dumps(values, indent=1) + "\n")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
