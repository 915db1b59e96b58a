"""What a course of readings says: how much grew, and what sessions have left behind. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.bench.leaks.footprint import Footprint
from slipstream.bench.leaks.plan import PARTS

SETTLED_PART = PARTS // 5
"""Growth counts from here on, at 20 %: caches are filled by then."""
FINISHED = "finished"
LEFT = "left after some tokens"
LEFT_AT_ONCE = "left before the first token"
_GROWING = tuple(Footprint.__dataclass_fields__)
_HELD = {
    "session_kv_bytes": "bytes of keys and values in use",
    "draft_kv_bytes": "bytes of the draft's keys and values",
    "num_tasks": "asyncio tasks",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading after so many sessions, while none runs."""

    num_sessions: int
    footprint: Footprint


@dataclass(slots=True)
class Ends:
    """How sessions ended; `errors` counts failures by class, `examples` has a sentence of each."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Course:
    """All readings of one run, `PARTS` after the first, how its sessions ended, and how long they
    took."""

    moments: Sequence[Moment]
    ends: Ends
    seconds: float

    @property
    def growth(self) -> dict[str, float]:
        """Of every quantity from 20 % to the end, per 1,000 sessions."""
        first, last = self.moments[SETTLED_PART], self.moments[-1]
        thousands = (last.num_sessions - first.num_sessions) / 1000
        return {
            name: (getattr(last.footprint, name) - getattr(first.footprint, name)) / thousands
            for name in _GROWING
        }

    @property
    def held(self) -> list[str]:
        """What ended sessions still held, in words; the first reading that shows it of each."""
        return [line for name in _HELD if (line := next(self._held(name), None)) is not None]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was held and nothing failed."""
        return not self.held and not self.ends.errors

    def figures(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "moments": [
                {"num_sessions": at.num_sessions, **asdict(at.footprint)} for at in self.moments
            ],
            "growth_from_session": self.moments[SETTLED_PART].num_sessions,
            "growth_per_1000_sessions": self.growth,
            "held": self.held,
            "ends": dict(self.ends.counts),
            "errors": dict(self.ends.errors),
            "error_examples": self.ends.examples,
            "seconds": self.seconds,
            "is_clean": self.is_clean,
        }

    def _held(self, name: str) -> Iterator[str]:
        for at in self.moments:
            value = getattr(at.footprint, name)
            if value:
                yield f"{value} {_HELD[name]} after {at.num_sessions} sessions"


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The verdict in sentences: growth, what is held, how the sessions ended."""
    growth, moments = figures["growth_per_1000_sessions"], figures["moments"]
    first, last = moments[SETTLED_PART], moments[-1]
    resident = [at["resident_bytes"] / (1 << 20) for at in (first, last)]
    ends = ", ".join(f"{count} {how}" for how, count in sorted(figures["ends"].items()))
    grown = (
        f"from session {first['num_sessions']} to {last['num_sessions']} resident memory changed by"
        f" {growth['resident_bytes'] / (1 << 20):+.2f} MiB per 1,000 sessions"
        f" ({resident[0]:.1f} to {resident[1]:.1f} MiB), kept for prefixes"
        f" {growth['prefix_kv_bytes'] / (1 << 20):+.2f} MiB, objects {growth['num_objects']:+.0f}"
    )
    held = "; ".join(figures["held"])
    said = f"sessions that have ended hold {held}" if held else "no session that has ended holds"
    left = said if held else f"{said} keys, values or tasks"
    failed = [
        f"{count} failed with {kind}: {figures['error_examples'][kind]}"
        for kind, count in figures["errors"].items()
    ]
    return [grown, left, f"sessions: {ends}" if ends else "sessions: none ended well", *failed]
