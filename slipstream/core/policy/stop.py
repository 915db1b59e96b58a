"""Stop policies: when drafting ends within a round. Pure.

Every policy is asked after a token was appended, never before: the uncertain token is still
proposed, and which token it is has no say. So stopping never biases the output; that of `exact`
verification depends on no draft, and its policies may read the noise of a position.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.core.errors import InvalidRequest, check
from slipstream.core.row_costs import monotone
from slipstream.core.types import StopPolicy


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured acceptance by confidence, linear between evenly spaced points.

    `points[i]` is the share of draft tokens that were kept among those whose top-1 probability,
    at temperature above 0 that of the perturbed scores, was i / (n - 1). It holds for one pair of
    models at one temperature. Without measurements the
    draft is taken at its word.
    """

    points: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise InvalidRequest(f"a calibration has {len(self.points)} points, but needs 2")
        for point in self.points:
            check(0 <= point <= 1, "a calibration point", point, "from 0 to 1")

    def probability(self, top_prob: float) -> float:
        """The chance that a token of this confidence is kept; 0 for no number."""
        if math.isnan(top_prob):
            return 0.0
        place = min(max(top_prob, 0.0), 1.0) * (len(self.points) - 1)
        below = min(int(place), len(self.points) - 2)
        low, high = self.points[below : below + 2]
        return low + (place - below) * (high - low)


NUM_POINTS = 11
"""Points of a calibration: by tenths, which some hundred tokens suffice for."""
_PRIOR = 2.0
"""Tokens that each point is given beforehand, accepted as often as the draft is confident."""


def fit_calibration(outcomes: Iterable[tuple[float, bool]]) -> Calibration:
    """Return acceptance by confidence: bins around evenly spaced points, then made monotone.

    An outcome is the draft's top-1 probability, and whether its token was accepted.
    """
    hits = [_PRIOR * point / (NUM_POINTS - 1) for point in range(NUM_POINTS)]
    counts = [_PRIOR] * NUM_POINTS
    for confidence, is_accepted in outcomes:
        point = round(min(confidence, 1.0) * (NUM_POINTS - 1))
        counts[point] += 1
        hits[point] += is_accepted
    shares = [hit / count for hit, count in zip(hits, counts, strict=True)]
    return Calibration(tuple(round(share, 4) for share in monotone(shares, counts)))


MAX_DRAFT_TOKENS = 40
"""No policy drafts a longer path than this (SVIP, released code)."""

SVIP_SLOPE = 0.15
"""c in the bound sqrt(c * H) (SVIP, released code; the paper's text leaves c out)."""

SVIP_THRESHOLD = 0.3
DECISION_THRESHOLD = 0.4
DECISION_THRESHOLD_SAMPLED = 0.6
"""Threshold for sampled requests in `exact` verification, whose scores depend on the noise."""


@dataclass(frozen=True, slots=True)
class StopSignal:
    """Numbers about the draft token that was appended last.

    `depth` counts the tokens on its path. `top_prob` and `entropy` (nats) are of the softmax of
    the row that it was ranked by. `score` is the decision model's.
    `path_prob` is the estimated probability that the whole path, this token included, is accepted.
    """

    depth: int
    top_prob: float
    entropy: float
    score: float | None = None
    path_prob: float = 1.0


class Stop(Protocol):
    """A policy of one round."""

    def should_stop(self, signal: StopSignal) -> bool:
        """Return whether the token of `signal` is the last to draft on its path."""


@dataclass(frozen=True, slots=True)
class FixedStop:
    """Draft `max_depth` tokens."""

    max_depth: int = MAX_DRAFT_TOKENS

    def __post_init__(self) -> None:
        is_right = 1 <= self.max_depth <= MAX_DRAFT_TOKENS
        check(is_right, "the draft length", self.max_depth, f"from 1 to {MAX_DRAFT_TOKENS}")

    def should_stop(self, signal: StopSignal) -> bool:
        return signal.depth >= self.max_depth


@dataclass(frozen=True, slots=True)
class SvipStop:
    """Stop when entropy bounds the chance of acceptance too low: sqrt(c * H) > h.

    (SVIP, Z. Zhang et al. 2025, section 2.2, read as the released code does.) An entropy that
    is no number leaves the limit on length.
    """

    threshold: float = SVIP_THRESHOLD
    limit: FixedStop = field(default_factory=FixedStop)

    def __post_init__(self) -> None:
        check(
            0 < self.threshold < math.inf, "the threshold of stop svip", self.threshold, "above 0"
        )

    def should_stop(self, signal: StopSignal) -> bool:
        bound = math.sqrt(SVIP_SLOPE * max(signal.entropy, 0.0))
        return self.limit.should_stop(signal) or bound > self.threshold


@dataclass(frozen=True, slots=True)
class DecisionStop:
    """Stop when the decision model gives the token a low score (DynaSD, released code).

    A score that is missing, or no number, leaves the choice to SVIP.
    """

    threshold: float = DECISION_THRESHOLD
    fallback: SvipStop = field(default_factory=SvipStop)

    def __post_init__(self) -> None:
        value = self.threshold
        check(0 <= value <= 1, "the threshold of stop decision", value, "from 0 to 1")

    def should_stop(self, signal: StopSignal) -> bool:
        if signal.score is None or math.isnan(signal.score):
            return self.fallback.should_stop(signal)
        return self.fallback.limit.should_stop(signal) or signal.score <= self.threshold


@dataclass(frozen=True, slots=True)
class CostStop:
    """Stop when one more token is expected to bring less than the time it costs.

    The next token counts only if the path and then it are accepted: the step is worth
    path_prob * P(next), in tokens. `cost_ratio` is the time of a draft step over that of a
    target round, round trips included. P(next) is taken to be that of the last token: the
    decision model's score if there is one, else its calibrated confidence.
    """

    cost_ratio: float
    calibration: Calibration = field(default_factory=Calibration)
    limit: FixedStop = field(default_factory=FixedStop)

    def __post_init__(self) -> None:
        is_right = 0 < self.cost_ratio < math.inf
        check(is_right, "the threshold of stop cost", self.cost_ratio, "above 0")

    def should_stop(self, signal: StopSignal) -> bool:
        likely = signal.score
        if likely is None or math.isnan(likely):
            likely = self.calibration.probability(signal.top_prob)
        return self.limit.should_stop(signal) or signal.path_prob * likely < self.cost_ratio


def make_stop(
    policy: StopPolicy,
    threshold: float | None = None,
    *,
    max_depth: int = MAX_DRAFT_TOKENS,
    cost_ratio: float | None = None,
    calibration: Calibration | None = None,
    is_sampled: bool = False,
) -> Stop:
    """The policy of one round. `threshold` None takes the policy's default; with `is_sampled` that
    of sampled requests in `exact` verification.

    The threshold of `cost` is its cost ratio, by default the measured `cost_ratio`. Raises
    `InvalidRequest` for a value out of range, or one that the policy does not have.
    """
    limit = FixedStop(max_depth)
    if policy is StopPolicy.FIXED:
        if threshold is not None:
            raise InvalidRequest(f"threshold is {threshold}, but stop fixed has none")
        return limit
    if policy is StopPolicy.COST:
        ratio = cost_ratio if threshold is None else threshold
        if ratio is None:
            raise InvalidRequest("stop cost needs a measured cost ratio, or a threshold")
        return CostStop(ratio, calibration or Calibration(), limit)
    if policy is StopPolicy.SVIP:
        return SvipStop(SVIP_THRESHOLD if threshold is None else threshold, limit)
    default = DECISION_THRESHOLD_SAMPLED if is_sampled else DECISION_THRESHOLD
    return DecisionStop(default if threshold is None else threshold, SvipStop(limit=limit))


FIXED, SVIP, DECISION, COST = range(4)


@dataclass(frozen=True, slots=True)
class Rule:
    """One chain's policy as numbers."""

    policy: int
    max_depth: int
    threshold: float = 0.0
    fallback: float = 0.0
    """SVIP's threshold, where the decision model has no score."""


def rule_of(stop: Stop) -> Rule | None:
    """Return a policy as numbers; None for one that is not known here."""
    match stop:
        case FixedStop(max_depth=depth):
            return Rule(FIXED, depth)
        case SvipStop(threshold=threshold, limit=limit):
            return Rule(SVIP, limit.max_depth, threshold)
        case DecisionStop(threshold=threshold, fallback=svip):
            return Rule(DECISION, svip.limit.max_depth, threshold, svip.threshold)
        case CostStop(cost_ratio=ratio, limit=limit):
            return Rule(COST, limit.max_depth, ratio)
    return None
