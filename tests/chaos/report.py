"""What disturbances did to streams: counts, and how long each stream that ran was silent."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.traffic import Stream, Traffic
from slipstream.files import write_json
from support.services.stalls import LoggedStall

QUANTILES = (0.5, 0.9, 0.99)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One disturbance, and the streams that were between two tokens when it came."""

    members: tuple[str, ...]
    at: float
    streams: Sequence[Stream]

    @property
    def silence_s(self) -> float:
        """Longest time without a token of one of them, in seconds."""
        return max(stream.silence(self.at) for stream in self.streams)


@dataclass(slots=True)
class Scenario:
    """Disturbances of one kind over streams that never stopped coming."""

    name: str
    faults: list[Fault] = field(default_factory=list)
    num_streams: int = 0
    num_tokens: int = 0
    failed: list[str] = field(default_factory=list)

    def take(self, traffic: Traffic) -> None:
        self.num_streams, self.num_tokens = len(traffic.streams), traffic.num_tokens
        self.failed = traffic.faults

    def values(self) -> dict[str, Any]:
        pairs = [(fault.at, stream) for fault in self.faults for stream in fault.streams]
        moved = [(at, stream) for at, stream in pairs if stream.num_losses + stream.num_resumed]
        return {
            "faults": len(self.faults),
            "streams": self.num_streams,
            "tokens": self.num_tokens,
            "streams_disturbed": len(pairs),
            "streams_moved": len(moved),
            "streams_failed": self.failed,
            "next_token_s": quantiles(stream.next_after(at) for at, stream in pairs),
            "longest_silence_s": quantiles(stream.silence(at) for at, stream in pairs),
            "next_token_of_moved_s": quantiles(stream.next_after(at) for at, stream in moved),
            "longest_silence_of_moved_s": quantiles(stream.silence(at) for at, stream in moved),
        }

    def line(self) -> str:
        values = self.values()
        times = values["longest_silence_of_moved_s"] or values["longest_silence_s"]
        shown = " ".join(f"{name} {value:.3f}" for name, value in times.items() if name != "n")
        return (
            f"{self.name}: {values['faults']} faults over {values['streams_disturbed']} running"
            f" streams ({values['streams_moved']} moved), {len(self.failed)} of"
            f" {self.num_streams} failed; longest silence, s: {shown}"
        )


class Report:
    """All scenarios of a run, written to a file as they end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.scenarios: list[Scenario] = []
        self.stalls: dict[str, list[LoggedStall]] = {}
        """What held event loops for 20 ms of CPU and more, by role."""

    def add(self, scenario: Scenario) -> None:
        self.scenarios.append(scenario)
        self.write()

    def write(self) -> None:
        if self._path is None:
            return
        values: dict[str, Any] = {each.name: each.values() for each in self.scenarios}
        values["stalls"] = {role: [asdict(at) for at in self.longest(role)] for role in self.stalls}
        write_json(self._path, values)

    def longest(self, role: str) -> list[LoggedStall]:
        return sorted(self.stalls[role], key=lambda at: -at.cpu_ms)[:_SHOWN]

    def lines(self) -> list[str]:
        """A line for each scenario, one for their sum, and one for the stalls of each role."""
        num_faults = sum(len(each.faults) for each in self.scenarios)
        num_failed = sum(len(each.failed) for each in self.scenarios)
        num_streams = sum(each.num_streams for each in self.scenarios)
        total = f"all: {num_faults} faults, {num_failed} of {num_streams} streams failed"
        stalls = [
            f"{role}: {len(found)} stalls of an event loop"
            + "".join(f"; {at.cpu_ms:.0f} ms of CPU in {at.place}" for at in self.longest(role))
            for role, found in self.stalls.items()
        ]
        return [*(each.line() for each in self.scenarios), total, *stalls]


def quantiles(times: Iterable[float | None]) -> dict[str, float]:
    """Return number, mean, quantiles and maximum of the known times; empty for none."""
    known = sorted(time for time in times if time is not None)
    if not known:
        return {}
    named = {f"p{q * 100:g}": known[min(int(q * len(known)), len(known) - 1)] for q in QUANTILES}
    mean = statistics.fmean(known)
    return {"n": len(known), "mean": mean, **named, "max": known[-1]}
