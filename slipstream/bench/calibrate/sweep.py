"""Sweep over profiles in simulation.

Greedy requests and sampled ones share the form of a proposal; each has its best threshold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slipstream.bench.calibrate.simulate import RoundCosts, Simulated, replayed, simulate
from slipstream.bench.calibrate.traces import DraftTrace
from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.profile import Profile
from slipstream.core.types import Shape, StopPolicy

T = TypeVar("T")
NODE_BUDGETS = (7, 11, 15, 23, 31)
"""Node limits of trees with leaves. A chain needs no other bound than its depth."""
LOOKUPS = (1, 2, 3)
"""Shortest matches behind which text is copied."""
_THRESHOLDS: Mapping[StopPolicy, tuple[float, ...]] = {
    StopPolicy.SVIP: (0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
    StopPolicy.DECISION: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    StopPolicy.COST: (0.03, 0.06, 0.1, 0.15, 0.2, 0.3),
}
_ALIKE = 0.99
"""Speed, over the fastest, from which settings count as equally fast."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a sweep: replies of both kinds, and what rounds cost."""

    greedy: tuple[DraftTrace, ...]
    sampled: tuple[DraftTrace, ...]
    costs: RoundCosts

    def __post_init__(self) -> None:
        if not self.greedy or not self.sampled:
            raise InvalidRequest("a sweep needs greedy and sampled replies, one of each at least")

    @property
    def both(self) -> tuple[DraftTrace, ...]:
        """Return the replies of both kinds."""
        return (*self.greedy, *self.sampled)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all replies together."""
        return sum(len(trace.tokens) for trace in self.both)


@dataclass(frozen=True, slots=True)
class Tried:
    """A profile and its simulation."""

    profile: Profile
    greedy: Simulated
    sampled: Simulated

    @property
    def speed(self) -> float:
        """Return the speed of both kinds of requests; neither may be bought with the other."""
        return math.sqrt(self.greedy.speed * self.sampled.speed)

    @property
    def tokens_per_round(self) -> float:
        """Return the final tokens of a round of both kinds of requests."""
        return math.sqrt(self.greedy.tokens_per_round * self.sampled.tokens_per_round)

    @property
    def name(self) -> str:
        """Return the policy with its thresholds, depth, and leaves with their budget."""
        at = self.profile
        thresholds = [f"{value:g}" for value in (at.threshold, at.threshold_sampled) if value]
        stop = "=".join([at.stop.value, *(["/".join(thresholds)] if thresholds else [])])
        leaves = "" if at.shape is Shape.CHAIN else f" nodes={at.max_nodes}"
        copies = f" lookup={at.lookup}" if at.lookup else ""
        return f"{stop} depth={at.max_depth} {at.shape.value}{leaves}{copies}"


def sweep(base: Profile, evidence: Evidence, *, depth: int) -> Iterator[Tried]:
    """Try every policy as a chain and with leaves; thresholds are the best for each.

    Nothing is copied yet: see `with_copies`. `base` has what is not swept, `depth` is the deepest
    that was recorded.
    """
    guesses = (guess for trace in evidence.greedy for chain in trace.chains for guess in chain)
    has_scores = any(guess.score is not None for guess in guesses)
    for stop in (StopPolicy.FIXED, *_THRESHOLDS):
        if stop is StopPolicy.DECISION and not has_scores:
            continue
        depths = range(1, depth + 1) if stop is StopPolicy.FIXED else (depth,)
        for max_depth in depths:
            at = replace(
                base,
                stop=stop,
                max_depth=max_depth,
                threshold=None,
                threshold_sampled=None,
                lookup=0,
            )
            for formed in _forms(at):
                yield _best_thresholds(formed, evidence)


def leading(found: Mapping[T, Simulated] | Mapping[T, Tried]) -> T:
    """Return the key of the fastest; of those that are about as fast, that of most tokens a round.

    Where tokens to verify cost less than here, that one is the faster.
    """
    least = _ALIKE * max(item.speed for item in found.values())
    return max(
        (at for at in found if found[at].speed >= least), key=lambda at: found[at].tokens_per_round
    )


def finalists(tried: Sequence[Tried], count: int) -> list[Tried]:
    """Return the `count` fastest, the best of every policy before the second best of any."""
    ranked = sorted(tried, key=lambda item: -item.speed)  # stable: the earlier of equals
    policies = dict.fromkeys(item.profile.stop for item in ranked)
    best = [
        leading({item: item for item in tried if item.profile.stop is stop}) for stop in policies
    ]
    best.sort(key=lambda item: -item.speed)
    return [*best, *(item for item in ranked if item not in best)][:count]


def with_copies(tried: Tried, evidence: Evidence) -> Tried:
    """Return the same with the fastest lookup, none included."""
    found = {0: tried}
    for shortest in LOOKUPS:
        profile = replace(tried.profile, lookup=shortest)
        greedy, sampled = (
            simulate(profile, traces, evidence.costs, rounds=replayed)
            for traces in (evidence.greedy, evidence.sampled)
        )
        found[shortest] = replace(tried, profile=profile, greedy=greedy, sampled=sampled)
    return found[leading(found)]


def _forms(base: Profile) -> Iterator[Profile]:
    yield replace(base, shape=Shape.CHAIN, max_nodes=NODE_BUDGETS[-1])
    for nodes in NODE_BUDGETS:
        if nodes > base.max_depth and max(base.cape_table) > 0:
            yield replace(base, shape=Shape.CAPE, max_nodes=nodes)


def _best_thresholds(profile: Profile, evidence: Evidence) -> Tried:
    costs = evidence.costs
    greedy, sampled = {}, {}
    for value in _THRESHOLDS.get(profile.stop, (None,)):
        greedy[value] = simulate(replace(profile, threshold=value), evidence.greedy, costs)
        with_sampled = replace(profile, threshold_sampled=value)
        sampled[value] = simulate(with_sampled, evidence.sampled, costs)
    best, best_sampled = leading(greedy), leading(sampled)
    chosen = replace(profile, threshold=best, threshold_sampled=best_sampled)
    return Tried(chosen, greedy[best], sampled[best_sampled])
