"""Mean values of a closed system whose engines serve everybody who is there at once.

Sessions go round for ever: on the way, at a draft, at a target. Mean-value analysis (M. Reiser,
S. Lavenberg 1980, "Mean-value analysis of closed multichain queuing networks", JACM 27(2)) adds
one session after the other: who comes sees the system as it is with one session less. Two things
are put in place of its exponential servers, which makes it an approximation: who comes during a
step waits for the rest of it, half a step on average (L. Kleinrock 1975, "Queueing Systems" 1,
5.2, for times that do not vary), and then shares the next one with all who came meanwhile. Exact
for one session. Knows no recordings.
"""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.core.errors import InvalidRequest

Seconds = Callable[[float], float]
"""What a step, or a pass, takes with so many sessions in it."""

PATIENCE = 0.5
"""Part of a step that a target waits for its sessions: see `engine/gathering.py`."""
_PUNCTUAL = 0.6
"""Of a target's patience: who was drafted for and is back within it, is hardly ever missed."""


@dataclass(frozen=True, slots=True)
class System:
    """Targets whose steps take `step_s`, drafts whose proposals are `passes` passes of `pass_s`
    each, and `away_s` on the way. Without drafts there are only targets."""

    targets: int
    drafts: int
    step_s: Seconds
    pass_s: Seconds
    passes: float
    away_s: float

    def __post_init__(self) -> None:
        if self.targets < 1 or self.drafts < 0 or self.passes < 0 or self.away_s < 0:
            raise InvalidRequest("a system needs a target, and nothing of it is below 0")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.drafts == 0 or self.passes == 0


@dataclass(frozen=True, slots=True)
class Means:
    """Rounds a second of all sessions, sessions in a step, and the share of time engines work."""

    rounds_per_s: float
    step_size: float
    target_utilisation: float
    draft_utilisation: float


def mean_values(system: System, sessions: int) -> Means:
    """Of a steady state of so many sessions."""
    if sessions < 1:
        raise InvalidRequest(f"there are {sessions} sessions, but must be at least 1")
    if (found := _in_step(system, sessions)) is not None:
        return found
    means, drafted = Means(0.0, 1.0, 0.0, 0.0), 0.0
    for count in range(1, sessions + 1):
        means, drafted = _one_more(system, count, means, drafted)
    return means


def bound(system: System, sessions: int) -> float:
    """Rounds a second that no order of events exceeds.

    Nobody goes round faster than alone, and no engine lets more through than in its best company.
    (P. Denning, J. Buzen 1978, "The operational analysis of queueing network models", ACM
    Computing Surveys 10(3), on asymptotic bounds.)
    """
    counts = range(1, sessions + 1)
    alone_s = system.away_s + system.step_s(1)
    limits = [system.targets * max(count / system.step_s(count) for count in counts)]
    if not system.is_plain:
        alone_s += system.passes * system.pass_s(1)
        best = max(count / system.pass_s(count) for count in counts)
        limits.append(system.drafts * best / system.passes)
    return min(sessions / alone_s, *limits)


def _in_step(system: System, sessions: int) -> Means | None:
    """Where sessions are back within a target's patience all go in every step. Exact for one
    target; several ones that share drafts are taken for systems of their own."""
    size = max(sessions / system.targets, 1.0)
    step_s, patience = system.step_s(size), PATIENCE
    away_s, draft_busy = system.away_s, 0.0
    if not system.is_plain:
        drafted_s = system.passes * system.pass_s(max(sessions / system.drafts, 1.0))
        away_s, patience = away_s + drafted_s, _PUNCTUAL * PATIENCE
        draft_busy = min(sessions / system.drafts, 1.0) * drafted_s / (step_s + away_s)
    if away_s > patience * step_s:
        return None
    busy = min(sessions / system.targets, 1.0) * step_s / (step_s + away_s)
    return Means(sessions / (step_s + away_s), size, busy, draft_busy)


def _one_more(system: System, count: int, before: Means, drafted: float) -> tuple[Means, float]:
    """With `count` sessions, where `before` and the sessions at a draft are of one less."""
    rate = before.rounds_per_s / system.targets
    waiting = before.target_utilisation * rate * system.step_s(before.step_size)
    size = min(1 + waiting, max(count / system.targets, 1.0))
    step_s = system.step_s(size)
    target_s = step_s * (1 + before.target_utilisation / 2)
    draft_s = pass_s = 0.0
    # Who leaves a step together is drafted for together.
    burst = 0.0 if system.is_plain else size / system.drafts
    if not system.is_plain:
        pass_s = system.pass_s(max(1 + drafted, burst))
        draft_s = pass_s * (system.passes + before.draft_utilisation / 2)
    rounds_per_s = count / (target_s + draft_s + system.away_s)
    target_busy = min(rounds_per_s / system.targets * step_s / size, 1.0)
    draft_busy = 0.0
    if not system.is_plain:
        drafted = rounds_per_s / system.drafts * draft_s
        passing_s = system.passes * system.pass_s(max(burst, 1.0)) / max(burst, 1.0)
        draft_busy = min(rounds_per_s / system.drafts * passing_s, 1.0)
    return Means(rounds_per_s, size, target_busy, draft_busy), drafted
