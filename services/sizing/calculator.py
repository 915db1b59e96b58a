"""How many drafts a target needs: formulas, no events. Prompts are spread over the rounds.

An estimate of what the simulator plays out, for looking at many systems at once. What cannot be
exceeded is told beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.mean_values import Seconds, System, bound, mean_values
from slipstream.sizing.recording import Devices, Work

KNEE = 0.95
"""Of what is possible: more drafts than reach it hardly pay."""
_SHORTER = 0.9


@dataclass(frozen=True, slots=True)
class Pools:
    """So many drafts and targets, and sessions that run on all of them together."""

    drafts: int
    targets: int
    sessions: int

    def __post_init__(self) -> None:
        if self.drafts < 0 or self.targets < 1 or self.sessions < 1:
            raise InvalidRequest(
                f"there can't be {self.drafts} drafts, {self.targets} targets and {self.sessions}"
                " sessions"
            )


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of pools in a steady state; `bottleneck` is whose time counts most: target, draft or wire.

    `break_even_final` are the tokens of a round, on average, above which drafting pays.
    """

    pools: Pools
    tokens_per_s: float
    bound_tokens_per_s: float
    plain_tokens_per_s: float
    target_utilisation: float
    draft_utilisation: float
    step_size: float
    bottleneck: str
    final: float
    break_even_final: float

    @property
    def gain(self) -> float:
        """Times the tokens of the same targets without drafts."""
        return self.tokens_per_s / self.plain_tokens_per_s


def estimate(devices: Devices, work: Work, pools: Pools) -> Estimate:
    """What the pools do, beside what their targets would do alone."""
    sessions = pools.sessions
    system = _system(devices, work, pools)
    means = mean_values(system, sessions)
    plain = mean_values(_system(devices, work, replace(pools, drafts=0)), sessions)
    final = 1.0 if system.is_plain else work.final
    most = max(bound(system, sessions), means.rounds_per_s)
    return Estimate(
        pools,
        means.rounds_per_s * final,
        most * final,
        plain.rounds_per_s,
        means.target_utilisation,
        means.draft_utilisation,
        means.step_size,
        _bottleneck(system, sessions),
        final,
        plain.rounds_per_s / means.rounds_per_s,
    )


def drafts_needed(
    devices: Devices, work: Work, *, targets: int, sessions: int, share: float = KNEE
) -> int:
    """The fewest drafts with which so many targets reach `share` of what they could at most.

    That is with a draft for every session.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"the share is {share:g}, but must be above 0, and at most 1")

    def rate(drafts: int) -> float:
        system = _system(devices, work, Pools(drafts, targets, sessions))
        return mean_values(system, sessions).rounds_per_s

    enough = share * rate(sessions) * (1 - 1e-9)
    low, high = 1, sessions
    while low < high:  # more drafts never do less
        middle = (low + high) // 2
        low, high = (low, middle) if rate(middle) >= enough else (middle + 1, high)
    return low


def _system(devices: Devices, work: Work, pools: Pools) -> System:
    is_plain = not pools.drafts or not work.depth
    # Without drafts an answer has more rounds, and each of them less of the prompt.
    rows = 1 + work.prompt / work.final if is_plain else 1 + work.nodes + work.prompt
    calls = 1 if is_plain else 2
    curve = devices.curve()

    def step_s(count: int) -> float:
        return curve.seconds(max(round(rows * count), 1), count)

    return System(
        pools.targets,
        pools.drafts,
        _between(step_s),
        _between(devices.level),
        work.depth,
        calls * devices.wire_s + devices.router_s,
    )


def _between(seconds: Callable[[int], float]) -> Seconds:
    """Of whole numbers of sessions, for averages of them."""
    whole = cache(seconds)

    def at(count: float) -> float:
        low = int(count)
        part = count - low
        return whole(low) + part * (whole(low + 1) - whole(low)) if part else whole(low)

    return at


def _bottleneck(system: System, sessions: int) -> str:
    """Whose time, a little shorter, would gain most."""
    step_s, pass_s = system.step_s, system.pass_s
    shorter = {
        "target": replace(system, step_s=lambda count: _SHORTER * step_s(count)),
        "draft": replace(system, pass_s=lambda count: _SHORTER * pass_s(count)),
        "wire": replace(system, away_s=_SHORTER * system.away_s),
    }
    rates = {name: mean_values(at, sessions).rounds_per_s for name, at in shorter.items()}
    return max(rates, key=lambda name: rates[name])
