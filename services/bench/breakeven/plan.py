"""What is swept: one thing at a time, around a point in the middle. Values only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from slipstream.core.errors import InvalidRequest
from slipstream.core.stop import MAX_DRAFT_TOKENS
from slipstream.sizing.break_even import Setting

ACCEPTANCE, COST, RTT, SESSIONS = "acceptance", "cost_ratio", "rtt_ms", "sessions"


@dataclass(frozen=True, slots=True)
class Point:
    """Drafts that are so often right, in a setting."""

    acceptance: float = 0.7
    setting: Setting = field(default_factory=lambda: Setting(4, 0.05))

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise InvalidRequest(f"acceptance is {self.acceptance:g}, but must be from 0 to 1")

    def values(self) -> dict[str, float]:
        """What is swept, by name; the round trip in ms."""
        at = self.setting
        return {
            ACCEPTANCE: self.acceptance,
            COST: at.cost_ratio,
            RTT: 1000 * at.rtt_s,
            SESSIONS: at.sessions,
        }


@dataclass(frozen=True, slots=True)
class Sweeps:
    """The values of each sweep; the other three are those of `base`."""

    base: Point = field(default_factory=Point)
    acceptances: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 0.95)
    cost_ratios: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    rtts_s: tuple[float, ...] = (0.001, 0.005, 0.02)
    sessions: tuple[int, ...] = (4, 16)

    def points(self) -> Mapping[str, tuple[Point, ...]]:
        """Of each sweep, in order; the one in the middle is of all of them."""
        base, at = self.base, self.base.setting
        found = {
            ACCEPTANCE: [replace(base, acceptance=value) for value in self.acceptances],
            COST: [
                replace(base, setting=replace(at, cost_ratio=value)) for value in self.cost_ratios
            ],
            RTT: [replace(base, setting=replace(at, rtt_s=value)) for value in self.rtts_s],
            SESSIONS: [
                replace(base, setting=replace(at, sessions=value)) for value in self.sessions
            ],
        }
        return {name: _ordered([*of, base], name) for name, of in found.items()}

    def distinct(self) -> tuple[Point, ...]:
        """Every point once."""
        return tuple(dict.fromkeys(point for of in self.points().values() for point in of))

    @property
    def crowds(self) -> tuple[int, ...]:
        """Numbers of sessions that there are."""
        return tuple(int(point.values()[SESSIONS]) for point in self.points()[SESSIONS])


@dataclass(frozen=True, slots=True)
class BreakEvenPlan:
    """How often each point is measured, beside plain decoding of as many sessions.

    Sessions make `num_tokens` tokens. What rounds cost is timed `cost_rounds` times for each size.
    """

    sweeps: Sweeps = field(default_factory=Sweeps)
    num_tokens: int = 64
    num_pairs: int = 5
    cost_rounds: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_tokens", 2), ("num_pairs", 1), ("cost_rounds", 1)):
            value = getattr(self, name)
            if value < least:
                raise InvalidRequest(f"{name} is {value}, but must be at least {least}")
        if self.depth > MAX_DRAFT_TOKENS:
            raise InvalidRequest(f"depth is {self.depth}, but at most {MAX_DRAFT_TOKENS} fit")

    @property
    def depth(self) -> int:
        """Tokens that are drafted in a round."""
        return self.sweeps.base.setting.depth

    @property
    def longest(self) -> int:
        """Tokens that a session may have: every round until `num_tokens` drafts all of its own."""
        return self.num_tokens + 2 * (self.depth + 1)

    def num_runs(self, *, has_draft: bool) -> int:
        """Runs of a crowd, plain ones included."""
        real = len(self.sweeps.crowds) if has_draft else 0
        return 2 * self.num_pairs * (len(self.sweeps.distinct()) + real)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(Rows of a session, sessions) that steps are timed with: those that there will be, and
        of one session alone as many rows as of all together."""
        rows = self.depth + 1
        most = max(self.sweeps.crowds)
        alone = {1, 2, rows, *(part * count for part in (1, rows) for count in self.sweeps.crowds)}
        ladder = {at for at in (8, 16, 32, 64, 96, 128) if at < rows * most}
        for count in sorted(alone | ladder):
            if count <= _MOST_ROWS:
                yield count, 1
        for crowd in self.sweeps.crowds:
            if crowd > 1:
                yield 1, crowd
                yield rows, crowd


_MOST_ROWS = 128
"""Of one session's proposal and its last token."""


def _ordered(points: list[Point], name: str) -> tuple[Point, ...]:
    return tuple(sorted(dict.fromkeys(points), key=lambda point: point.values()[name]))
