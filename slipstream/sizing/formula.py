"""The number of drafts that targets need, by one formula.

All sessions of a target share every step, and all sessions of a draft every pass, so that a round
takes step(S / T) + depth x level(S / D) + calls, for S sessions, T targets and D drafts.
"""

import math
from dataclasses import dataclass, replace

from slipstream.core.errors import InvalidRequest
from slipstream.core.policy.cost_curve import CostCurve

KNEE = 0.95
"""Share of the possible throughput: more drafts than reach it hardly pay."""


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of engines, and of calls between them.

    `verify` are (batched tokens, seconds) of one session's forwards on the target, ascending from
    1; every further session of a step adds `verify_session_s`. A pass of the draft, one level of
    the trees of all its sessions, takes `level_s`, and `level_token_s` for every batched token
    beyond the first. `call_s` is a call to an engine and back beside the engine's own time.
    """

    verify: tuple[tuple[int, float], ...]
    level_s: float
    level_token_s: float = 0.0
    verify_session_s: float = 0.0
    call_s: float = 0.001

    def __post_init__(self) -> None:
        for name in ("level_s", "call_s", "level_token_s", "verify_session_s"):
            seconds, is_needed = getattr(self, name), name in {"level_s", "call_s"}
            if not 0 <= seconds < math.inf or (is_needed and not seconds):
                raise InvalidRequest(f"{name} is {seconds}, which is no time of an engine or call")
        self.curve()

    def curve(self) -> CostCurve:
        """Return the time of a step of the target by batched tokens and sessions."""
        return CostCurve(self.verify, session_s=self.verify_session_s)

    def level(self, num_tokens: float) -> float:
        """Return the time of a pass of the draft over so many batched tokens."""
        return self.level_s + self.level_token_s * (num_tokens - 1)


@dataclass(frozen=True, slots=True)
class MeanRound:
    """The average round: a chain of `depth` draft tokens, of which `final - 1` are accepted.

    `prompt` are prompt tokens, spread over the rounds of their answers.
    """

    depth: int
    final: float
    prompt: float = 0.0

    @classmethod
    def of_chain(cls, acceptance: float, depth: int, prompt_share: float = 0.0) -> "MeanRound":
        """Return the round whose tokens are each accepted with a probability if all before are.

        `prompt_share` are prompt tokens for each token of an answer. Raises `InvalidRequest`.
        """
        if not (0 <= acceptance <= 1 and 0 <= depth <= 127):
            raise InvalidRequest(
                f"acceptance is {acceptance:g} and depth {depth}, but must be from 0 to 1"
                " and from 0 to 127"
            )
        final = sum(acceptance**node for node in range(depth + 1))
        return cls(depth, final, prompt_share * final)


@dataclass(frozen=True, slots=True)
class Pools:
    """Numbers of drafts and targets, and of sessions that run on all of them."""

    drafts: int
    targets: int
    sessions: int

    def __post_init__(self) -> None:
        if self.drafts < 0 or self.targets < 1 or self.sessions < 1:
            raise InvalidRequest(f"there is no estimate of {self}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Throughput of pools in a steady state, and where the time of a round goes.

    Drafting pays where rounds make more than `break_even_final` tokens final on average.
    """

    pools: Pools
    tokens_per_s: float
    plain_tokens_per_s: float
    break_even_final: float
    verify_s: float
    draft_s: float
    calls_s: float


def estimate(times: DeviceTimes, average: MeanRound, pools: Pools) -> Estimate:
    """Return the throughput beside that of the same targets without drafts."""
    parts = _round_s(times, average, pools)
    round_s, plain_s = sum(parts), sum(_round_s(times, average, replace(pools, drafts=0)))
    final = average.final if pools.drafts and average.depth else 1.0
    rates = pools.sessions * final / round_s, pools.sessions / plain_s
    return Estimate(pools, *rates, round_s / plain_s, *parts)


def drafts_needed(
    times: DeviceTimes, average: MeanRound, *, targets: int, sessions: int, share: float = KNEE
) -> int:
    """Return the fewest drafts that reach a share of the throughput with a draft per session.

    Raises `InvalidRequest` where nothing is drafted.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"the share is {share:g}, but must be above 0, and at most 1")
    if not average.depth:
        raise InvalidRequest("nothing is drafted in these rounds, so no drafts are needed")
    least_s = sum(_round_s(times, average, Pools(sessions, targets, sessions)))
    for drafts in range(1, sessions):
        if share * sum(_round_s(times, average, Pools(drafts, targets, sessions))) <= least_s:
            return drafts
    return sessions


def _round_s(times: DeviceTimes, average: MeanRound, pools: Pools) -> tuple[float, float, float]:
    """Return the time of a round in a target, in a draft, and in calls."""
    is_drafted = bool(pools.drafts and average.depth)
    size = max(pools.sessions / pools.targets, 1.0)
    # Without drafts an answer has more rounds, and each of them less of the prompt.
    nodes, rounds = (average.depth, 1.0) if is_drafted else (0, average.final)
    tokens = round(size * (1 + nodes + average.prompt / rounds))
    verify_s = times.curve().seconds(max(tokens, 1), max(round(size), 1))
    if not is_drafted:
        return verify_s, 0.0, times.call_s
    draft_s = average.depth * times.level(max(pools.sessions / pools.drafts, 1.0))
    return verify_s, draft_s, 2 * times.call_s
