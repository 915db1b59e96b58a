"""Samples of what processes hold through a soak, and the verdict on them."""

import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import redis

from chaos.cluster import Cluster
from support.services.stalls import LoggedStall, long_stalls

# What may grow from the end of the warm-up to the end, and the part of its median that may, too.
ALLOWED = {"rss_mib": 16.0, "descriptors": 16.0, "threads": 4.0, "children": 0.0, "keys": 24.0}
_ALLOWED_PART = 0.05
_WARM_UP = 0.25
"""Part of the time, at its beginning, that no verdict looks at."""
_MOST_FAULTS = 50


class Samples:
    """Figures of the processes that are never killed, over time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._minutes: list[float] = []
        self._series: dict[str, list[float]] = defaultdict(list)
        self._kills: list[tuple[float, str]] = []
        self._ended: dict[str, Any] = {}

    def take(self, cluster: Cluster) -> None:
        self._minutes.append(self._now())
        for name, member in cluster.members.items():
            if name.endswith("-0"):
                for figure, value in _figures(member.pid).items():
                    self._series[f"{name} {figure}"].append(value)
        try:
            with redis.Redis(port=cluster.ports["redis-0"]) as store:
                self._series["store keys"].append(store.dbsize())
        except redis.ConnectionError:  # it starts again
            self._series["store keys"].append(self._series["store keys"][-1])

    def note_kill(self, name: str) -> None:
        self._kills.append((self._now(), name))

    def end(
        self,
        counts: Mapping[str, int],
        faults: Sequence[str],
        stalls: Mapping[str, Sequence[LoggedStall]],
    ) -> None:
        found = {role: sorted(at, key=lambda it: -it.cpu_ms)[:5] for role, at in stalls.items()}
        self._ended = {
            "requests": dict(counts),
            "faults": faults[:_MOST_FAULTS],
            "num_faults": len(faults),
            "long_stalls": len(long_stalls(chain.from_iterable(stalls.values()))),
            "longest_stalls": {role: [*map(asdict, at)] for role, at in found.items()},
            "longest_stall_ms": max((it.cpu_ms for at in found.values() for it in at), default=0),
        }

    @property
    def growing(self) -> dict[str, float]:
        """Return what grew by more than is allowed, and by how much."""
        grown = {}
        for name, series in self._series.items():
            kept = series[round(len(series) * _WARM_UP) :]
            half = len(kept) // 2
            # The median of differences over half of the time: outliers at either end do not count.
            by = 2 * statistics.median(b - a for a, b in zip(kept, kept[half:], strict=False))
            allowed = ALLOWED[name.split()[-1]] + _ALLOWED_PART * statistics.median(kept)
            if by > allowed:
                grown[name] = round(by, 1)
        return grown

    @property
    def is_clean(self) -> bool:
        return not (self._ended["num_faults"] or self.growing or self._ended["long_stalls"])

    def summary(self) -> str:
        ended, growing = self._ended, self.growing
        total = sum(ended["requests"].values())
        flat = ", ".join(f"{name} by {by:g}" for name, by in growing.items()) or "nothing"
        last = {name: series[-1] for name, series in self._series.items()}
        rss = ", ".join(f"{name.split()[0]} {last[name]:.0f}" for name in last if "rss" in name)
        return (
            f"{total} requests in {self._now():.0f} minutes, {len(self._kills)} kills:"
            f" {ended['num_faults']} wrong or lost. Grew after the warm-up: {flat}. RSS at the end,"
            f" MiB: {rss}; {last['store keys']:.0f} keys stored. Longest stall of an event loop:"
            f" {ended['longest_stall_ms']:.0f} ms of CPU."
        )

    def write(self, path: Path) -> None:
        values = {"summary": self.summary(), "growing": self.growing, **self._ended}
        values |= {"kills": self._kills, "minutes": self._minutes, "series": self._series}
        path.write_text(json.dumps(values) + "\n")

    def _now(self) -> float:
        return (time.monotonic() - self._began) / 60


def _figures(pid: int) -> dict[str, float]:
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    return {
        "rss_mib": int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024,
        "descriptors": len([*(process / "fd").iterdir()]),
        "threads": int(re.findall(r"Threads:\s+(\d+)", status)[0]),
        "children": sum(
            len((task / "children").read_text().split()) for task in (process / "task").iterdir()
        ),
    }
