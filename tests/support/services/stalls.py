"""Stalls of event loops as services have logged them; see `slipstream.telemetry.loop_watchdog`."""

import re
from dataclasses import dataclass

_LINE = re.compile(r"the (?:event loop|interpreter's lock) was held for ([\d.]+) ms of CPU by (.*)")
_NUMBER = re.compile(r":\d+|, of which .*")


@dataclass(frozen=True, slots=True)
class LoggedStall:
    """How long a loop could run nothing else, and what held it."""

    cpu_ms: float
    place: str

    @property
    def name(self) -> str:
        """The place without what changes with a line of code or from run to run."""
        return _NUMBER.sub("", self.place)


def stalls_in(log: str) -> list[LoggedStall]:
    """Those that a service has written, in their order."""
    lines = [line for line in log.splitlines() if "longest of all callbacks" not in line]
    found = [match for line in lines if (match := _LINE.search(line))]
    return [LoggedStall(float(match[1]), match[2]) for match in found]
