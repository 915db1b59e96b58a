"""`make fuzz-files CASES=N`: broken and hostile files of every kind, each loaded or refused.

Ends with 1 where anything was found. `--seed` and `--first` of a report go on with its cases.
"""

import argparse
import math
import sys
import time
from itertools import product

from fuzz import report
from fuzz.files.kinds import kinds_by_name
from fuzz.files.runner import KEPT, MEMORY, Runner

_CHUNK = 200


def fuzz(asked: argparse.Namespace) -> report.Tally:
    """Run all cases, in turns of the kinds."""
    names = asked.kinds.split(",") if asked.kinds else sorted(kinds_by_name())
    end = asked.first + -(-asked.cases // len(names))
    until = time.monotonic() + 60 * asked.minutes
    runner = Runner(asked.memory, asked.keep)
    try:
        for first, name in product(range(asked.first, end, _CHUNK), names):
            if time.monotonic() > until:
                break
            runner.run(name, asked.seed, first, min(first + _CHUNK, end))
    finally:
        runner.close()
    return runner.tally


def main() -> int:
    parser = report.parser("fuzz.files", __doc__, KEPT, minutes=math.inf)
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases, all kinds")
    parser.add_argument("--kinds", help="names of kinds, with commas between; all by default")
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes that a file may take")
    asked = parser.parse_args()
    return report.conclude(asked.seed, fuzz(asked), {}, [])


if __name__ == "__main__":
    sys.exit(main())
