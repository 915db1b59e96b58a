"""The number of drafts that targets need, by a formula that estimates what the simulator finds.

All sessions of a target share every step, and all sessions of a draft every pass, so that a round
takes step(S / T) + depth x level(S / D) + calls, for S sessions, T targets and D drafts.
"""

from dataclasses import dataclass, replace
from statistics import mean

from slipstream.core.errors import InvalidRequest
from slipstream.sizing.recording import DeviceTimes, Recording

KNEE = 0.95
"""Share of the possible throughput: more drafts than reach it hardly pay."""


@dataclass(frozen=True, slots=True)
class MeanRound:
    """The average round; `prompt` are prompt tokens, spread over the rounds of their answers."""

    depth: float
    nodes: float
    final: float
    prompt: float = 0.0


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


def mean_round(recording: Recording) -> MeanRound:
    """Return the average of all rounds. Raises `InvalidRequest` where there is none."""
    rounds = [each for request in recording.requests for each in request.rounds]
    if not rounds:
        raise InvalidRequest("the requests have no round after the prompt's own")
    return MeanRound(
        mean(each.depth for each in rounds),
        mean(each.nodes for each in rounds),
        1 + mean(each.accepted for each in rounds),
        sum(request.num_prompt_tokens for request in recording.requests) / len(rounds),
    )


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
    """Return the time of a round in a target, in a draft, and in calls and router."""
    is_drafted = bool(pools.drafts and average.depth)
    size = max(pools.sessions / pools.targets, 1.0)
    # Without drafts an answer has more rounds, and each of them less of the prompt.
    nodes, rounds = (average.nodes, 1.0) if is_drafted else (0.0, average.final)
    tokens = round(size * (1 + nodes + average.prompt / rounds))
    verify_s = times.curve().seconds(max(tokens, 1), max(round(size), 1))
    if not is_drafted:
        return verify_s, 0.0, times.call_s + times.router_s
    draft_s = average.depth * times.level(max(pools.sessions / pools.drafts, 1.0))
    return verify_s, draft_s, 2 * times.call_s + times.router_s
