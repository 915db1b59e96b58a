"""Stop policies: when drafting ends within a round. Pure.

Every policy is asked after a token was appended, never before: the uncertain token is still
proposed, and which token it is has no say. So stopping never biases the output; that of `exact`
verification depends on no draft, and its policies may read the noise of a position.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

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


FIXED, SVIP, DECISION, COST = range(4)
"""Policies as kernels number them."""
_NUMBERS = {policy: number for number, policy in enumerate(StopPolicy)}


@dataclass(frozen=True, slots=True)
class Stop:
    """The policy of one round; no path gets longer than `max_depth`, with which `fixed` has enough.

    `svip` stops when entropy bounds the chance of acceptance too low: sqrt(c * H) > `threshold`
    (Z. Zhang et al. 2025, section 2.2, read as the released code does). An entropy that is no
    number stops nothing.

    `decision` stops when the decision model gives the token a low score (DynaSD, released code). A
    score that is missing, or no number, leaves the choice to SVIP, with the threshold `fallback`.

    `cost` stops when one more token is expected to bring less than the time it costs, that of a
    draft step over a target round's: the `threshold`. It counts only if the path and then it are
    accepted, so the step is worth path_prob * P(next), in tokens. P(next) is taken to be that of
    the last token: the decision model's score if there is one, else its calibrated confidence.
    """

    policy: StopPolicy
    max_depth: int = MAX_DRAFT_TOKENS
    threshold: float = 0.0
    fallback: float = SVIP_THRESHOLD
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        is_right = 1 <= self.max_depth <= MAX_DRAFT_TOKENS
        check(is_right, "the draft length", self.max_depth, f"from 1 to {MAX_DRAFT_TOKENS}")
        value, name = self.threshold, f"the threshold of stop {self.policy.value}"
        if self.policy is StopPolicy.DECISION:
            check(0 <= value <= 1, name, value, "from 0 to 1")
        elif self.policy is not StopPolicy.FIXED:
            check(0 < value < math.inf, name, value, "above 0")

    @property
    def number(self) -> int:
        """Return the policy as kernels number it."""
        return _NUMBERS[self.policy]

    def should_stop(self, signal: StopSignal) -> bool:
        """Return whether the token of `signal` is the last to draft on its path."""
        score = None if signal.score is None or math.isnan(signal.score) else signal.score
        if signal.depth >= self.max_depth or self.policy is StopPolicy.FIXED:
            return signal.depth >= self.max_depth
        if self.policy is StopPolicy.COST:
            likely = self.calibration.probability(signal.top_prob) if score is None else score
            return signal.path_prob * likely < self.threshold
        if self.policy is StopPolicy.DECISION and score is not None:
            return score <= self.threshold
        limit = self.threshold if self.policy is StopPolicy.SVIP else self.fallback
        return math.sqrt(SVIP_SLOPE * max(signal.entropy, 0.0)) > limit


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
    if policy is StopPolicy.FIXED and threshold is not None:
        raise InvalidRequest(f"threshold is {threshold}, but stop fixed has none")
    decision = DECISION_THRESHOLD_SAMPLED if is_sampled else DECISION_THRESHOLD
    usual = 0.0, SVIP_THRESHOLD, decision, cost_ratio
    value = usual[_NUMBERS[policy]] if threshold is None else threshold
    if value is None:
        raise InvalidRequest("stop cost needs a measured cost ratio, or a threshold")
    return Stop(policy, max_depth, value, calibration=calibration or Calibration())
